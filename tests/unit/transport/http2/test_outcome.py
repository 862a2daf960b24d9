"""How calls end, by what a peer written by hand sends."""

from collections.abc import Callable

import pytest
from support.servers import http2_frames as raw

from dynamo_router.base.errors import StatusCode
from dynamo_router.transport.http2._streams import END
from dynamo_router.transport.http2.library import make_session
from dynamo_router.transport.http2.outcome import Fault, Outcome, outcome_of

HEAD = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"h"))
MOST = 1000


def ended_by(answer: bytes) -> Outcome:
    client = make_session(server=False, max_message_bytes=MOST, max_header_bytes=4000)
    call = client.request(HEAD, (), b"")
    client.send(1 << 20)
    client.receive(raw.settings() + answer, len(raw.settings() + answer))
    client.send(1 << 20)
    (reset,) = [value for stream, kind, value in client.take_events() if kind == END]
    return outcome_of(call, reset, MOST)


def status(code: bytes, *more: tuple[bytes, bytes]) -> bytes:
    pairs = ((b"grpc-status", code), *more)
    return raw.headers(1) + raw.headers(1, pairs, end=True)


def only_headers(*pairs: tuple[bytes, bytes]) -> bytes:
    return raw.headers(1, pairs, end=True)


def reset(code: int) -> bytes:
    return raw.frame(raw.RST_STREAM, 1, code.to_bytes(4, "big"))


def http(code: bytes) -> bytes:
    return only_headers((b":status", code))


Check = Callable[[Outcome], bool]


@pytest.mark.parametrize(
    ("answer", "fault", "code"),
    [
        (status(b"0"), None, StatusCode.OK),
        (
            status(b"8", (b"grpc-message", b"too%20many")),
            Fault.STATUS,
            StatusCode.RESOURCE_EXHAUSTED,
        ),
        (status(b"99"), Fault.STATUS, StatusCode.UNKNOWN),
        (status(b"-1"), Fault.STATUS, StatusCode.UNKNOWN),
        (status(b""), Fault.STATUS, StatusCode.UNKNOWN),
        (
            only_headers((b":status", b"200"), (b"grpc-status", b"14")),
            Fault.STATUS,
            StatusCode.UNAVAILABLE,
        ),
        (raw.headers(1, end=True), Fault.STATUS, StatusCode.UNKNOWN),
        (http(b"503"), Fault.STATUS, StatusCode.UNAVAILABLE),
        (http(b"418"), Fault.STATUS, StatusCode.UNKNOWN),
        (http(b"400"), Fault.STATUS, StatusCode.INTERNAL),
        (reset(7), Fault.STATUS, StatusCode.UNAVAILABLE),
        (reset(8), Fault.STATUS, StatusCode.CANCELLED),
        (reset(11), Fault.STATUS, StatusCode.RESOURCE_EXHAUSTED),
        (reset(2), Fault.STATUS, StatusCode.INTERNAL),
        (raw.headers(1) + raw.data(1, bytes(3)) + reset(8), Fault.STATUS, StatusCode.CANCELLED),
        (
            raw.headers(1)
            + raw.data(1, b"\0\0\0\0\5abc")
            + raw.headers(1, ((b"grpc-status", b"0"),), end=True),
            Fault.STATUS,
            StatusCode.INTERNAL,
        ),
        (raw.headers(1) + raw.data(1, raw.message(b"x", True)), Fault.STATUS, StatusCode.INTERNAL),
        (
            raw.headers(1) + raw.data(1, raw.message(bytes(MOST + 1))),
            Fault.ANSWER_SIZE,
            StatusCode.RESOURCE_EXHAUSTED,
        ),
        (
            status(b"13", (b"grpc-message", b"x" * 5000)),
            Fault.STATUS_SIZE,
            StatusCode.RESOURCE_EXHAUSTED,
        ),
    ],
)
def test_how_a_call_ends(answer: bytes, fault: Fault | None, code: int) -> None:
    outcome = ended_by(answer)
    assert (outcome.fault, outcome.code) == (fault, code)


def test_a_status_comes_with_its_text_and_metadata() -> None:
    answer = status(b"9", (b"grpc-message", b"%C3%B6%25"), (b"x", b"y"), (b"z-bin", b"AAE"))
    assert ended_by(answer) == Outcome(Fault.STATUS, 9, "ö%", (("x", "y"), ("z-bin", b"\x00\x01")))


def test_a_text_may_end_with_a_space() -> None:
    assert ended_by(status(b"13", (b"grpc-message", b" no "))).details == " no "


def test_the_size_of_a_message_is_said() -> None:
    answer = raw.headers(1) + raw.data(1, raw.message(bytes(MOST + 1)))
    assert "(1001 vs. 1000)" in ended_by(answer).details
