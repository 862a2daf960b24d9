"""The splits are held apart: in seeds, in every parameter, and from whoever tunes."""

from dataclasses import fields
from itertools import combinations
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.evaluation.splits import (
    ERRORS,
    FAMILIES,
    FLEETS,
    SPLIT_NAMES,
    TUNABLE,
    require_tunable,
    split_of,
)
from dynamo_router.bench.sweep import Sweep, SweepConfig
from dynamo_router.bench.traces.trace import encode_request
from dynamo_router.bench.traffic import TRAFFIC_BLOCK_SIZE, TrafficSpec, generate_traffic


def test_no_two_splits_share_a_seed_a_parameter_or_a_fleet() -> None:
    splits = [split_of(name) for name in SPLIT_NAMES]
    for one, other in combinations(splits, 2):
        assert not set(one.seeds) & set(other.seeds)
        assert one.first_id != other.first_id
        for mine in one.fleets:
            for theirs in other.fleets:
                assert all(a != b for a, b in zip(mine, theirs, strict=True))
        for family in FAMILIES:
            mine_spec, their_spec = one.traffic[family], other.traffic[family]
            assert mine_spec.parameters().keys() == their_spec.parameters().keys()
            for name, value in mine_spec.parameters().items():
                assert value != their_spec.parameters()[name], f"{family}: {name}"
        for kind, settings in one.errors.items():
            for name, value in settings.items():
                # A switch has no third value; whatever has a size differs.
                assert isinstance(value, bool) or value != other.errors[kind][name], kind


def test_every_split_has_all_families_their_errors_and_four_seeds() -> None:
    for split in map(split_of, SPLIT_NAMES):
        assert list(split.traffic) == [
            "conversation", "agents", "documents", "batch", "bursts", "tenants",
            "coders", "heavy-tail", "flash-crowd", "thrash", "rag", "volleys",
            "rag-chunks", "drifting-tenants", "batch-beside-chat", "reasoning",
        ]  # fmt: skip
        assert {
            "attention",
            "hidden-tiers",
            "late-events",
            "no-events",
            "slow-worker",
            "half-slow",
            "untold-facts",
        } <= set(split.errors)
        assert len(split.seeds) == 4 and len(split.fleets) >= 2


def test_every_parameter_of_a_family_is_told_for_every_split() -> None:
    required = {each.name for each in fields(TrafficSpec)} - {
        *("family", "history", "forks", "job_requests", "bursts", "max_prompt_tokens"),
        *("chunks", "jobs", "drift_s"),
    }
    for parameters in FAMILIES.values():
        assert required <= parameters.keys()
        assert all(len(values) == len(SPLIT_NAMES) for values in parameters.values())
    assert FLEETS.keys() == set(SPLIT_NAMES) and ERRORS


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="split: 'test' is none of"):
        split_of("test")


@pytest.mark.parametrize("name", SPLIT_NAMES)
def test_a_sweep_refuses_the_reports_traffic_in_whatever_file(tmp_path: Path, name: str) -> None:
    split = split_of(name)
    made = generate_traffic(
        split.traffic["batch"], 5, rate=10.0, seed=split.seeds[0], first_id=split.first_id
    )
    trace = tmp_path / "innocent.jsonl"
    trace.write_bytes(b"".join(map(encode_request, made)))
    config = SweepConfig(trace=str(trace), trace_block_size=TRAFFIC_BLOCK_SIZE)
    if name in TUNABLE:
        Sweep(config)
        require_tunable("train", made)
        return
    with pytest.raises(ConfigError, match="trace: .*innocent.jsonl is traffic of the report"):
        Sweep(config)
    with pytest.raises(ConfigError, match="trace: "):  # nor a part of it, behind other requests
        require_tunable("mixed", [*made[-1:]])
