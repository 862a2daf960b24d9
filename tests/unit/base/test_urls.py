"""Credentials in URLs: hidden wherever one is shown, whatever they are made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.urls import joined, redact_text, redact_url, split_nats_url
from dynamo_router.process.settings import bad_setting


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("127.0.0.1:4222", "127.0.0.1:4222"),
        ("nats://alice:S3cret@host:4222", "nats://alice:***@host:4222"),
        ("nats://T0ken@host", "nats://***@host"),
        ("alice:S3cret@host:4222", "alice:***@host:4222"),
        ("T0ken@host", "***@host"),
        ("tls://alice:p@ss@host", "tls://alice:***@host"),
        ("nats://alice:pa/ss?x#y@host", "nats://alice:***@host"),
        ("nats://alice:p w@host", "nats://alice:***@host"),
        ("alice:a://b@host", "alice:***@host"),
        ("nats://a:x@h1,nats://b:y@h2", "nats://a:***@h1,nats://b:***@h2"),
        ("nats://a:x,y@h1, tls://h2", "nats://a:***@h1, tls://h2"),
        ("nats://:S3cret@host", "nats://:***@host"),
        ("nats://alice:S3cret", "nats://alice:***"),
        ("h1:4222,h2:4222", "h1:4222,h2:4222"),
        ("tls://[::1]:4222", "tls://[::1]:4222"),
        ("grpc://10.0.0.1:9001?id=1", "grpc://10.0.0.1:9001?id=1"),
    ],
)
def test_a_url_is_shown_without_its_secret(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_text_around_urls_stays() -> None:
    line = "tried nats://a:x@h1:1, then tls://T0ken@h2: 'refused' by b@c"
    assert redact_text(line) == "tried nats://a:***@h1:1, then tls://***@h2: 'refused' by b@c"
    assert redact_text("mail a@b, no://where") == "mail a@b, no://where"


M = 1 << 17


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("a" * M + "@ ://", 0),
        ("@" + "a://" * M, 0),
        ("a://b," * M + "@", 1),
        ("a://b@" * M, 1),
        ("a://b@," * M, M),
        ("://" * M + "@", 0),
    ],
)
def test_a_long_text_of_a_peer_takes_no_longer_for_what_it_is_made_of(
    text: str, hidden: int
) -> None:
    """A pattern that is tried anew from each of these places would take days."""
    assert redact_text(text).count("***@") == hidden


_SECRETS = st.text(
    st.characters(codec="ascii", exclude_characters=" ", categories=("L", "N", "P", "S")),
    min_size=1,
)


@given(_SECRETS)
def test_no_password_is_shown_by_a_url_a_log_line_or_an_error(secret: str) -> None:
    marked = f"S3{secret}cr3t"
    url = f"nats://alice:{marked}@host:4222"
    assert "S3" not in redact_url(url) and "cr3t" not in redact_url(url)
    assert "S3" not in redact_text(f"connected url={url}")
    assert "S3" not in str(bad_setting("nats", f"{url!r} is bad")).replace("\\", "")


@given(_SECRETS)
def test_an_address_that_is_refused_is_refused_without_its_password(secret: str) -> None:
    try:
        host, port = split_nats_url(f"nats://alice:S3{secret}cr3t@host:4222")
    except ConfigError as error:
        assert "S3" not in str(error) and "cr3t" not in str(error)
    else:
        assert (host, port) == ("host", 4222)


@pytest.mark.parametrize(
    "url", ["nats://alice:S3cret", "nats://h/p", "http://a:S3cret@h", "nats://"]
)
def test_what_is_no_address_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a NATS server") as caught:
        split_nats_url(url)
    assert "S3cret" not in str(caught.value)


def test_an_address_of_ipv6_is_in_brackets_before_a_port() -> None:
    hosts = ("127.0.0.1", "a.b", "::1", "[::1]", "fe80::1%eth0")
    shown = ["127.0.0.1:7", "a.b:7", "[::1]:7", "[::1]:7", "[fe80::1%eth0]:7"]
    assert [joined(host, 7) for host in hosts] == shown
