"""A tenant beside a flood: what it sees is bounded by what it would see alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.evaluation.splits import split_of
from dynamo_router.bench.workbench.flood import (
    ALONE,
    NAMED,
    SHED,
    UNNAMED,
    FloodConfig,
    measure_outcomes,
    ratios,
    run,
    traffic_of,
)

SMALL = FloodConfig(
    split="train", families=("conversation",), requests=200, flood_after_s=8.0, seeds=1
)


def test_the_flood_begins_later_and_ends_with_the_others() -> None:
    split = split_of("train")
    made = traffic_of(SMALL, split, "conversation", split.seeds[0])
    times = [each.timestamp_ms for each in made]
    flood = [each.timestamp_ms for each in made if each.tenant == "flood"]
    others = [each.timestamp_ms for each in made if each.tenant == "others"]
    assert times == sorted(times) and max(flood) <= max(others)
    assert others[0] < min(flood) < 12_000 and min(flood) >= 8_000
    assert 120 <= len(others) <= 280


def test_a_tenant_is_served_beside_a_flood_if_somebody_names_them() -> None:
    """Deterministic: virtual time."""
    found = list(measure_outcomes(SMALL))
    assert [each.run for each in found] == [ALONE, UNNAMED, NAMED, SHED]
    (unnamed,), (named,), (shed,) = (
        ratios(found, "conversation", each) for each in (UNNAMED, NAMED, SHED)
    )
    assert unnamed > 10 and named < 3 and shed < 3
    alone, _, beside, refusing = found
    assert beside.refused == beside.flood_refused == 0
    assert alone.queued_ms == 0 and beside.queued_ms < 10
    assert refusing.refused < 0.2 * refusing.flood_refused and refusing.itl_ms < 25 < beside.itl_ms
    assert beside.tokens_per_s > 1.2 * alone.tokens_per_s


def test_the_command_tells_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "flood.json"
    assert run(replace(SMALL, requests=90, json=str(target))) == 0
    document = json.loads(target.read_text())
    assert len(document["outcomes"]) == 4 and document["benchmark"] == "flood"
    assert "p99 / alone" in capsys.readouterr().out


def test_others_who_end_before_the_flood_begins_are_refused() -> None:
    with pytest.raises(ConfigError, match="flood_after_s"):
        list(measure_outcomes(replace(SMALL, requests=20)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("requests", 0), ("seeds", 5), ("others", 0.0), ("flood_after_s", -1.0), ("families", ("x",))],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        replace(SMALL, **{key: value})  # type: ignore[arg-type]
