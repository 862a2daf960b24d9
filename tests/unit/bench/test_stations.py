"""The stations of the prefill queue: their functions are where they are said to be, and the
picture of the docs shows them."""

import inspect
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.places import ROOT

import dynamo_router
from dynamo_router.bench.station_picture import draw_stations, stations_content
from dynamo_router.bench.stations import (
    ROLES,
    STATIONS,
    Call,
    NotPassedError,
    Passed,
    Place,
    owner_of,
    read_calls,
    way_of,
)

PAGE = ROOT / "docs" / "prefill_queue.md"
PICTURE = ROOT / "docs" / "images" / "prefill_stations.svg"
PLACES = sorted(
    {place.at(kind) for each in STATIONS for place in each.places for kind in ("shm", "nixl")}
)
CHARACTER = 7.0  # pixels of a letter at most, 11 high and fixed in width


def a_way(transfer: str = "shm") -> list[Passed]:
    """A millisecond from place to place."""
    places = [(each, place.at(transfer)) for each in STATIONS for place in each.places]
    return [Passed(*both, 7.0 + number / 1e3, 40) for number, both in enumerate(places)]


def calls_of(way: list[Passed]) -> dict[str, list[Call]]:
    calls: dict[str, list[Call]] = {role: [] for role in ROLES}
    for passed in way:
        place = passed.place
        calls[place.role].append(Call(place.file, place.function, passed.at_s, passed.pid))
    return calls


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.function)
def test_a_place_is_a_function_of_its_file(place: Place) -> None:
    owner, name = owner_of(place.file, place.function)
    code = inspect.unwrap(getattr(owner, name)).__code__
    assert Path(code.co_filename) == Path(dynamo_router.__file__).parent / place.file
    assert code.co_qualname == place.function


def test_they_are_the_documents_thirteen() -> None:
    assert [station.name for station in STATIONS] == [f"S{n}" for n in range(1, 14)]


def test_the_page_names_the_files_of_each_station() -> None:
    rows = re.findall(r"^\| (S\d+) \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    files = {
        (each.name, each.word): {p.at(kind).file for p in each.places for kind in ("shm", "nixl")}
        for each in STATIONS
    }
    assert {(row[0], row[1]): set(re.findall("`([^`]+)`", row[2])) for row in rows} == files


def test_the_picture_of_the_page_is_of_a_run_through_these_places() -> None:
    assert f"](images/{PICTURE.name})" in PAGE.read_text()
    texts = [each.text for each in ElementTree.parse(PICTURE).iter() if each.text]
    kind = "nixl" if any("by nixl" in text for text in texts) else "shm"
    shown = [text for text in texts if "/" in text or re.match(r"S\d", text)]
    expected = []
    for station in STATIONS:
        expected.append(f"{station.name} {station.word}")
        expected += [place.at(kind).file for place in station.places]
    assert shown == expected
    functions = [place.at(kind).function for each in STATIONS for place in each.places]
    assert [text for text in texts if text in functions] == functions


def test_no_text_of_a_picture_lies_on_another() -> None:
    drawn = ElementTree.fromstring(draw_stations(a_way("nixl"), "One prompt", "of 7000 tokens"))
    width, height = map(int, drawn.attrib["viewBox"].split()[2:])
    rows: dict[float, list[tuple[float, float]]] = {}
    for each in drawn.iter("{http://www.w3.org/2000/svg}text"):
        x, long = float(each.attrib["x"]), len(each.text or "") * CHARACTER
        left = x - {"end": long, "middle": long / 2}.get(each.attrib.get("text-anchor", ""), 0)
        rows.setdefault(float(each.attrib["y"]), []).append((left, left + long))
    heights = sorted(rows)
    assert all(below - above >= 14 for above, below in zip(heights, heights[1:], strict=False))
    assert heights[-1] < height
    for spans in rows.values():
        ends = [0.0]
        for left, right in sorted(spans):
            assert left >= ends[-1]
            ends.append(right)
        assert ends[-1] <= width


def test_a_way_is_found_in_what_was_recorded() -> None:
    way = a_way()
    calls = calls_of(way)
    early = [Call(each.file, each.function, each.at_s - 5, 40) for each in calls["decode"]]
    calls["decode"] = early + calls["decode"]  # an earlier prompt's
    assert way_of(calls, 6.5, "shm") == way
    shown = stations_content(way)
    assert shown[1] == {
        "station": "S2", "role": "router", "file": "server/handoff/handoffs.py",
        "function": "Handoffs.decide_pair", "ms": 1.0, "pid": 40,
    }  # fmt: skip


@pytest.mark.parametrize("number", range(len(a_way())))
def test_a_way_with_a_gap_is_none(number: int) -> None:
    way = a_way()
    left_out = way.pop(number)
    with pytest.raises(NotPassedError, match=f"{left_out.station.name}: no {left_out[1].function}"):
        way_of(calls_of(way), 0.0, "shm")


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    file.write_bytes(b'{"file":"a.py","function":"f","at_s":1.5,"pid":3}\n{"file":"b')
    assert read_calls(file) == [Call("a.py", "f", 1.5, 3)]
    assert read_calls(tmp_path / "none") == []
