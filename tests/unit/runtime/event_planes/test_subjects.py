"""Subjects: how they are built, checked and matched."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.runtime.event_planes.event_plane import (
    KV_EVENTS,
    KV_METRICS,
    KV_RESYNC,
    check_subject,
    endpoint_subject,
    subject_matches,
)


def test_the_subject_of_an_endpoint() -> None:
    subject = endpoint_subject("dynamo", "backend", "generate", KV_EVENTS)
    assert subject == "namespace.dynamo.component.backend.endpoint.generate.kv-events"
    assert endpoint_subject("a", "b", "c", KV_METRICS).endswith(".kv_metrics")
    assert endpoint_subject("a", "b", "c", KV_RESYNC).endswith(".kv-resync")


def test_a_name_stays_one_segment() -> None:
    subject = endpoint_subject("a.b", "c d", "*", ">")
    assert subject == "namespace.a%2Eb.component.c%20d.endpoint.%2A.%3E"


@given(*[st.text(min_size=1, max_size=8) for _ in range(4)])
@settings(max_examples=50)
def test_any_names_make_a_valid_subject(n: str, c: str, e: str, t: str) -> None:
    try:
        subject = endpoint_subject(n, c, e, t)
    except UnicodeEncodeError:  # half a surrogate pair is no text
        return
    assert len(check_subject(subject, wildcards=False)) == 7


@pytest.mark.parametrize("position", range(4))
def test_an_empty_name_is_refused(position: int) -> None:
    names = ["a", "b", "c", "d"]
    names[position] = ""
    with pytest.raises(ValueError):
        endpoint_subject(*names)


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a b", "a.b\r\nPUB x 0", "a\0"])
def test_a_malformed_subject_is_refused(subject: str) -> None:
    with pytest.raises(ValueError):
        check_subject(subject, wildcards=True)


@pytest.mark.parametrize("subject", [">.a", "a.>.b", "a*", "a.b>", "**"])
def test_a_misplaced_wildcard_is_refused(subject: str) -> None:
    with pytest.raises(ValueError):
        check_subject(subject, wildcards=True)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>"])
def test_nobody_publishes_on_a_wildcard(subject: str) -> None:
    assert check_subject(subject, wildcards=True)
    with pytest.raises(ValueError):
        check_subject(subject, wildcards=False)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.>", "a.b", True),
    ],
)
def test_wildcards_match_as_in_nats(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern.split("."), subject.split(".")) is matches
