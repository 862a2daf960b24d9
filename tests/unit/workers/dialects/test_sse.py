"""Server-sent events, however the network cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.dialects import sse
from dynamo_router.workers.dialects.sse import EventReader

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=8)
END = st.sampled_from(["\n", "\r\n", "\r"])


def read(data: bytes, cuts: list[int], max_bytes: int = 1000) -> list[bytes]:
    reader = EventReader(max_bytes)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    return [event for piece in pieces for event in reader.feed(piece)]


@given(
    events=st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=4),
    noise=st.lists(st.sampled_from([": comment", "event: x", "id: 4", "nonsense", "retry: 1"])),
    end=END,
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_events_come_out_as_they_went_in(
    events: list[list[str]], noise: list[str], end: str, cuts: list[int]
) -> None:
    """Lines of any end, comments and unknown fields between them, in pieces of any length."""
    written = ""
    for lines in events:
        for line in lines:
            written += "".join(f"{each}{end}" for each in noise) + f"data: {line}{end}"
        written += end
    # A carriage return may be half of a line's end until something follows.
    found = read(written.encode() + b": the end\n", cuts)
    assert found == ["\n".join(lines).encode() for lines in events]


def test_what_the_standard_says_of_details() -> None:
    assert read(b"\xef\xbb\xbfdata:one\ndata:  two\n\n\n\ndata\n\ndata: not ended", []) == [
        b"one\n two",
        b"",
    ]


def test_a_mark_of_the_encoding_may_come_in_parts() -> None:
    assert read(b"\xef\xbb\xbfdata: one\n\n", [1, 2]) == [b"one"]


def test_a_line_is_looked_at_once_however_many_parts_it_comes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    split = sse._lines

    def counted(data: bytes) -> list[bytes]:
        looked_at.append(len(data))
        return split(data)

    monkeypatch.setattr(sse, "_lines", counted)
    said = b"data: " + b"x" * 900
    assert read(said + b"\n\n", list(range(len(said)))) == [said[6:]]
    assert sum(looked_at) <= 2 * len(said)


@pytest.mark.parametrize("data", [b"data: " + b"x" * 20, b"data: 12345\n" * 4, b"x" * 40])
def test_an_event_without_an_end_is_given_up(data: bytes) -> None:
    with pytest.raises(OverflowError):
        read(data, [], max_bytes=20)
    assert read(b"data: 12345\n\n" * 20, [], max_bytes=20) == [b"12345"] * 20
