"""Frames between fronts and the decider: whole messages out of any pieces, or a word on why not."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.server.fronts.messages import (
    FRAME_BYTES,
    MAX_FRAME_BYTES,
    Ask,
    Booked,
    Decided,
    Freed,
    FromDecider,
    FromFront,
    Hello,
    LinkError,
    MessageReader,
    Output,
    Prefilled,
    Report,
    encode,
)
from dynamo_router.workers.failures import Blame, Retry, Verdict

ASK = Ask(1, "r1", 40, b"12345678", b"87654321", [4, 5], (7, 1), 2, 0.5, 16, 0.25)
SAID = [
    Hello(1, 0, 99, "token"),
    ASK,
    Booked(ASK, (7, 0), True, 3),
    Report("failed", 7, 0.5, True, Verdict(Blame.EITHER, Retry.ONCE, "internal")),
    Freed("r1"),
]

messages = st.lists(
    st.one_of(
        st.builds(Freed, st.text(max_size=8), st.none() | st.integers(0, 2**40)),
        st.builds(Output, st.text(max_size=8), st.integers(0, 2**40)),
        st.builds(Prefilled, st.text(max_size=8), st.booleans(), st.none() | st.integers(0, 9)),
    ),
    min_size=1,
)


def test_messages_come_out_whole_from_pieces_of_one_byte() -> None:
    reader = MessageReader(FromFront)
    found = [m for byte in encode(SAID) for m in reader.feed(bytes([byte]))]
    assert found == SAID


@given(messages, st.lists(st.integers(0, 300)))
def test_however_the_stream_is_cut_the_same_is_said(said: list[object], cuts: list[int]) -> None:
    data, reader = encode(said), MessageReader(FromFront)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = [m for a, b in zip(edges, edges[1:], strict=False) for m in reader.feed(data[a:b])]
    assert found == said


def test_a_large_batch_is_cut_into_frames() -> None:
    said = [Freed("x" * 1000) for _ in range(3000)]
    data = encode(said)
    (first,) = struct.unpack_from(">I", data)
    assert FRAME_BYTES / 4 < first <= FRAME_BYTES < len(data)
    assert MessageReader(FromFront).feed(data) == said


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 1) + b"\xc0",  # nil
        struct.pack(">I", 2) + b"\x91\x01",  # an array of a number
        struct.pack(">I", 4) + b"\x91\x92\xcc\xff",  # cut within
        struct.pack(">I", 3) + b"\x91\x91\x63",  # of a kind that there is not
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(LinkError):
        MessageReader(FromFront).feed(data)


def test_a_front_does_not_speak_as_the_decider_does() -> None:
    with pytest.raises(LinkError):
        MessageReader(FromFront).feed(encode([Decided(1, 2, 0, 0, 0, 1, 0, True, 0, 0, 0.0)]))
    with pytest.raises(LinkError):
        MessageReader(FromDecider).feed(encode([ASK]))


@given(st.binary(max_size=200))
def test_garbage_gives_messages_or_a_frame_error(data: bytes) -> None:
    try:
        MessageReader(FromFront).feed(data)
    except LinkError:
        pass


def test_a_message_beyond_the_largest_frame_is_not_sent() -> None:
    with pytest.raises(LinkError):
        encode([Freed("x" * (MAX_FRAME_BYTES + 1))])
