"""Stop strings against the plain rule: the text up to where one is complete first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.processor import StopStrings

A_TEXT = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def rule(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The first stop string that is complete, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def shown(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    reader = StopStrings(stops, include=include)
    text = "".join(reader.feed(piece).text for piece in pieces)
    return text + reader.flush(), reader.stopped_by


@given(pieces=st.lists(A_TEXT, max_size=8), stops=STOPS, include=st.booleans())
def test_however_the_text_is_cut(pieces: list[str], stops: list[str], include: bool) -> None:
    assert shown(pieces, stops, include) == rule("".join(pieces), stops, include)


@given(pieces=st.lists(A_TEXT, max_size=8), stops=STOPS)
def test_no_more_is_held_back_than_could_become_one(pieces: list[str], stops: list[str]) -> None:
    reader, seen, said = StopStrings(stops), "", ""
    for piece in pieces:
        said += piece
        seen += reader.feed(piece).text
        if reader.stopped_by is None:
            held = said[len(seen) :]
            assert said.startswith(seen)
            assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_prefix_of_a_stop_never_leaks() -> None:
    reader = StopStrings(["<|end|>"])
    assert [reader.feed(piece).text for piece in ("hi<", "|en", "d|", "> more")] == [
        "hi",
        "",
        "",
        "",
    ]
    assert reader.stopped_by == "<|end|>" and reader.feed("x").text == "" == reader.flush()


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_nothing_is_held(stops: Any) -> None:
    assert StopStrings(stops).feed("a<").text == "a<"


def test_long_stop_strings_are_found_and_let_go() -> None:
    stop = "a" * 4000 + "b"
    stops = StopStrings([stop])
    assert [stops.feed("a" * 1000).text for _ in range(4)] == [""] * 4
    assert stops.feed("a" * 10).text == "a" * 10
    assert stops.feed("c").text == "a" * 4000 + "c"
    assert stops.feed("x" + stop) == ("x", stop)
