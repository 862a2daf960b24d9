"""Which session a request says that it belongs to."""

import math

import pytest

from dynamo_router.base.errors import ConfigError, InvalidRequestError
from dynamo_router.router.affinity import SESSION_KEYS, AffinityConfig, Session, read_session


def test_the_first_of_the_known_keys_counts() -> None:
    said = {key: f"by-{key}" for key in SESSION_KEYS}
    for key in SESSION_KEYS:
        session = read_session(said.items())
        assert session is not None and session.key == f"by-{key}"
        del said[key]
    assert read_session(said.items()) is None


def test_a_caller_reaches_its_own_sessions_only() -> None:
    said = [("x-session-id", "s")]
    keys = [read_session(said, name) for name in ("", "alice", "bob")]
    assert [each.key for each in keys if each] == ["s", "alice/s", "bob/s"]


def test_what_else_is_said_of_it() -> None:
    said = [
        ("x-dynamo-session-id", b"s"),
        ("x-dynamo-session-final", "True"),
        ("x-dynamo-session-timeout", "7.5"),
    ]
    assert read_session(said, "", "me") == Session("s", "me", 7.5, True)
    assert read_session(said[:1]) == Session("s", "", math.inf, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-session-id", "x" * 257),
        ("x-session-id", "a\nb"),
        ("x-dynamo-session-final", "perhaps"),
        ("x-dynamo-session-timeout", "0"),
        ("x-dynamo-session-timeout", "nan"),
        ("x-dynamo-session-timeout", "soon"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=key):
        read_session(
            [("thread-id", "s"), (key, value)] if key != "x-session-id" else [(key, value)]
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session_affinity_ttl_secs", 0.5),
        ("session_affinity_ttl_secs", 4e7),
        ("session_affinity_ttl_secs", math.nan),
        ("session_affinity_mode", "firm"),
        ("session_affinity_discount", 1.5),
        ("max_sessions", 1),
    ],
)
def test_bad_settings(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        AffinityConfig(**{key: value})  # type: ignore[arg-type]
