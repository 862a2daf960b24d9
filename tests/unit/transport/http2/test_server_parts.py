"""What a server decides about a connection, without one: floods, age, idleness, requests."""

import math

import pytest

from dynamo_router.transport.http2.connection_life import ConnectionLife, Step
from dynamo_router.transport.http2.flood_guard import RESETS_BURST, SETTINGS_BURST, FloodGuard
from dynamo_router.transport.http2.request_head import (
    Refusal,
    http1_refusal,
    read_head,
    status_trailers,
)
from dynamo_router.transport.http2.server_limits import ServerLimits


def test_pings_that_come_too_soon_are_too_many_at_the_third() -> None:
    guard = FloodGuard(10.0)
    assert [guard.on_ping(now) for now in (0, 10, 11, 12, 13)] == [False] * 4 + [True]
    guard.on_sent()
    assert [guard.on_ping(now) for now in (14, 15, 16, 17)] == [False] * 3 + [True]


def test_settings_and_hasty_resets_have_an_allowance() -> None:
    guard = FloodGuard(10.0)
    assert not any(guard.on_settings(1.0) for _ in range(SETTINGS_BURST))
    assert guard.on_settings(1.0) and not guard.on_settings(2.0)
    assert not any(guard.on_reset(5.0, 1.0) for _ in range(10 * RESETS_BURST))  # they waited
    assert not any(guard.on_reset(5.0, 4.5) for _ in range(RESETS_BURST))
    assert guard.on_reset(5.0, 4.5)


LIMITS = ServerLimits(handshake_s=5.0, idle_s=60.0, age_s=1000.0, age_grace_s=30.0)


def test_a_connection_that_is_not_greeted_is_closed() -> None:
    life = ConnectionLife(LIMITS, 0.0)
    assert life.look(4.0, 0, 0.0) == (Step.STAY, 1.0)
    assert life.look(5.0, 0, 0.0)[0] is Step.CLOSE and life.due == "connection_handshake_s"


def test_one_without_a_call_is_left() -> None:
    life = ConnectionLife(LIMITS, 0.0)
    life.greeted()
    assert life.look(70.0, 1, 0.0) == (Step.STAY, 60.0)
    assert life.look(80.0, 0, 75.0) == (Step.STAY, 55.0)
    assert life.look(135.0, 0, 75.0)[0] is Step.LEAVE and life.due == "connection_idle_s"


def test_an_old_one_is_left_and_closed_after_its_grace() -> None:
    life = ConnectionLife(LIMITS, 0.0, spread=1.1)
    life.greeted()
    assert life.look(1099.0, 1, 0.0) == (Step.STAY, 1.0)
    assert life.look(1100.0, 1, 0.0) == (Step.LEAVE, 30.0)
    life.leave()
    assert life.look(1120.0, 1, 0.0) == (Step.STAY, 10.0)
    assert life.look(1130.0, 1, 0.0)[0] is Step.CLOSE


def test_without_limits_it_stays() -> None:
    life = ConnectionLife(ServerLimits(), 0.0)
    life.greeted()
    assert life.look(1e9, 0, 0.0) == (Step.STAY, math.inf)


HEAD = ((b":method", b"POST"), (b":path", b"/a/B"), (b"content-type", b"application/grpc"))


@pytest.mark.parametrize(("value", "seconds"), [(b"250m", 0.25), (b"2M", 120.0)])
def test_a_request_says_what_it_asks_for(value: bytes, seconds: float) -> None:
    assert read_head(HEAD) == (b"/a/B", None, ())
    assert read_head((*HEAD, (b"grpc-timeout", value))) == (b"/a/B", seconds, ())
    assert read_head((*HEAD, (b"x-a", b"1"))) == (b"/a/B", None, (("x-a", "1"),))
    assert isinstance(read_head((*HEAD, (b"grpc-timeout", b"soon"))), Refusal)
    bearer = (b"authorization", b"Bearer a")
    assert read_head((*HEAD, bearer)) == (b"/a/B", None, (("authorization", "Bearer a"),))
    twice = read_head((*HEAD, bearer, bearer))
    assert isinstance(twice, Refusal) and twice.status == "INVALID_ARGUMENT"
    assert b"authorization" in dict(twice.headers)[b"grpc-message"]
    assert isinstance(read_head(HEAD[:2]), Refusal)


def test_a_status_names_its_text_if_it_has_one() -> None:
    assert status_trailers(0, "") == ((b"grpc-status", b"0"),)
    assert status_trailers(5, "a b%", ((b"x", b"y"),)) == (
        (b"grpc-status", b"5"),
        (b"grpc-message", b"a b%25"),
        (b"x", b"y"),
    )


def test_only_http1_is_answered_in_http1() -> None:
    assert http1_refusal(b"GET / HTTP/1.1\r\n").startswith(b"HTTP/1.1 505")
    assert http1_refusal(b"\x16\x03\x01") == b"" == http1_refusal(b"hello")
