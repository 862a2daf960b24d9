"""The harness of the benchmarks: turns, rounds, spreads, and what a command shows and writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.results import (
    Benchmark,
    Column,
    Measurement,
    measure_in_turns,
    rows_table,
    spread_table,
    turns,
)


def test_another_variant_begins_each_round_and_warm_up_does_not_count() -> None:
    assert list(turns("abc", 2, warm_up=1)) == [
        (("a", "b", "c"), False),
        (("b", "c", "a"), True),
        (("c", "a", "b"), True),
    ]
    assert list(turns("a", 0)) == []


def test_figures_of_rounds_that_count_are_kept_by_variant() -> None:
    calls: list[str] = []

    def variant(name: str) -> dict[str, float]:
        calls.append(name)
        return {"us": float(len(calls))}

    measured = measure_in_turns({name: partial(variant, name) for name in "ab"}, 2, warm_up=1)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert measured.spreads() == {
        "b": {"us": {"median": 4.5, "min": 3.0, "max": 6.0}},
        "a": {"us": {"median": 4.5, "min": 4.0, "max": 5.0}},
    }


def test_a_variant_that_fails_ends_the_measurement() -> None:
    def fail() -> dict[str, float]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        measure_in_turns({"a": fail}, 1)


@dataclass(frozen=True)
class Settings:
    json: str | None = None
    rounds: int = 3
    dynamo: str | None = "/a/python"
    core: int | None = None


def test_a_command_shows_its_tables_and_writes_settings_and_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(config: Settings) -> dict[str, Any]:
        rounds = Measurement[str]()
        for value in (1.0, 3.0, 2.0):
            rounds.add("all", {"us": value})
        return rounds.spreads()

    def tables(result: Mapping[str, Any]) -> list[Any]:
        title = f"{result['config']['rounds']} rounds"
        return [spread_table(title, result["all"], [Column("time, us", "us", 1)]), "in words"]

    target = tmp_path / "out.json"
    assert Benchmark("mine", measure, tables)(Settings(json=str(target))) == 0
    shown = capsys.readouterr().out.split()
    assert shown[:2] == ["3", "rounds"] and shown[-5:] == ["2.0", "1.0", "3.0", "in", "words"]
    written = json.loads(target.read_text())
    assert written["benchmark"] == "mine" and written["config"] == {"rounds": 3, "core": None}
    assert written["all"] == {"us": {"median": 2.0, "min": 1.0, "max": 3.0}}
    assert written["environment"]["versions"]


def test_what_cannot_be_written_or_pinned_is_refused_before_anything_is_measured() -> None:
    def measure(config: Settings) -> dict[str, Any]:
        raise AssertionError("measured")

    with pytest.raises(ConfigError, match="no such directory"):
        Benchmark("mine", measure, lambda _: [])(Settings(json="/nowhere/out.json"))
    with pytest.raises(ConfigError, match="cannot pin to core"):
        Benchmark("mine", measure, lambda _: [])(Settings(core=10**6))


def test_a_column_reads_medians_and_parts_and_says_what_is_missing() -> None:
    row = {"name": "a", "us": {"median": 1234.5, "p99": 7}, "share": 0.25}
    assert Column("", "name").cell(row) == "a"
    assert Column("", "us", 0).cell(row) == "1,234"
    assert Column("", "us.p99", 1).cell(row) == "7.0"
    assert Column("", "share", lambda share: f"{share:.0%}").cell(row) == "25%"
    for missing in ("gone", "us.p50", "name.first"):
        assert Column("", missing, 1).cell(row) == "-"
    table = rows_table([row], [Column("way", "name"), Column("us", "us", 0)], "title")
    assert [column.justify for column in table.columns] == ["left", "right"]
