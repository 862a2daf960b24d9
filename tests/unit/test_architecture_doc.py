"""docs/architecture.md names every room, and its walks follow the imports."""

import re
from collections import defaultdict

import pytest
from support.import_graph import SourceTree, module_name
from support.places import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
FOLDERS = sorted(
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"
)
SECTIONS = dict(
    (part.partition("\n")[0], part.partition("\n")[2]) for part in TEXT.split("\n## ")[1:]
)
WALKS = {name: text for name, text in SECTIONS.items() if name.startswith("The walk of")}
MOST_ROWS, MOST_STATIONS = 30, 12
FARTHEST = 2
"""Imports between a station and the ones before it, through the `__init__` of rooms."""


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def paths(cell: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", cell) if "/" in name or name.endswith(".py")]


@pytest.fixture(scope="module")
def tree() -> SourceTree:
    return SourceTree(ROOT, tuple(FOLDERS))


@pytest.fixture(scope="module")
def neighbours(tree: SourceTree) -> dict[str, set[str]]:
    """Which modules import each other, whoever imports whom."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in tree.imports:
        found[each.source].add(each.target)
        found[each.target].add(each.source)
    return found


def test_they_fit_on_one_screen_and_are_all_there() -> None:
    table = rows(SECTIONS["Rooms"])
    assert 20 < len(table) <= MOST_ROWS
    named = {name for row in table for name in re.findall(r"`([\w/.]+)`", " ".join(row))}
    heads = {name for row in table for name in re.findall(r"`([^`]+)`", row[0])}
    assert not [name for name in heads if not (ROOT / name).exists()]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/__init__.py")}
    folders = {name for name in folders if name.split("/")[0] in FOLDERS}
    # The row of a floor stands for all of its rooms, unless some have a row of their own.
    cut = {name.split("/")[0] for name in heads if "/" in name}
    lost = {name for name in folders if name.split("/")[0] in cut} - named
    assert lost | (set(FOLDERS) - named) == set()
    assert len(folders) > 40


def test_each_folder_is_in_the_picture() -> None:
    drawn = set(
        re.findall(r"\w+", re.sub("<[^>]*>", " ", (ROOT / "docs" / "house.svg").read_text()))
    )
    folders = {path.parent for path in ROOT.glob("*/*/__init__.py")}
    assert {each.name for each in folders if each.parent.name in FOLDERS} - drawn == set()


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short_and_its_files_exist(walk: str) -> None:
    stations = rows(WALKS[walk])
    assert 3 < len(stations) <= MOST_STATIONS
    assert [row[0] for row in stations] == [str(n) for n in range(1, len(stations) + 1)]
    for row in stations:
        assert paths(row[1]), f"no file at station {row[0]}"
        assert not [name for name in paths(row[1]) if not (ROOT / name).is_file()]


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_follows_the_imports(walk: str, neighbours: dict[str, set[str]]) -> None:
    stations = [[module_name(name) for name in paths(row[1])] for row in rows(WALKS[walk])]
    seen = set(stations[0])
    for station in stations[1:]:
        near = reach(neighbours, seen)
        assert near & set(station), f"{station} is far from all before it"
        seen |= set(station)


def reach(neighbours: dict[str, set[str]], start: set[str]) -> set[str]:
    near = set(start)
    for _ in range(FARTHEST):
        near |= {other for module in near for other in neighbours[module] if not is_base(other)}
    return near


def is_base(module: str) -> bool:
    """What everything imports connects nothing."""
    return module.split(".")[0] in ("base", "process", "__init__")


def test_four_kinds_of_walk_are_there() -> None:
    for kind in ("KV event over NATS", "KV event over ZMQ", "gRPC request", "OpenAI chat"):
        assert f"The walk of a {kind}" in WALKS or f"The walk of an {kind}" in WALKS
