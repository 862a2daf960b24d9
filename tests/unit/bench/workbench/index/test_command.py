"""The index benchmark: indexes that do the same work, and numbers that add up."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.plain_index import Dicts

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE, sample_traffic
from dynamo_router.bench.workbench.index import command, events, phases, rivals
from dynamo_router.bench.workbench.index.command import run
from dynamo_router.bench.workbench.index.config import PARTS, IndexBenchConfig
from dynamo_router.bench.workbench.index.drained import as_messages, measure_drained
from dynamo_router.bench.workbench.index.events import measure_events
from dynamo_router.bench.workbench.index.goals import judge
from dynamo_router.bench.workbench.index.growth import PROMPT, invent_prompts, measure_growth
from dynamo_router.bench.workbench.index.memory import measure_memory
from dynamo_router.bench.workbench.index.phases import PHASES, measure_phases
from dynamo_router.bench.workbench.index.rivals import (
    Arrays,
    Dynamo,
    Events,
    IndexAdapter,
    Lists,
    available_adapters,
    dynamo_core,
)
from dynamo_router.bench.workbench.index.workload import (
    Removed,
    Stored,
    hash_prompts,
    plan_workload,
)
from dynamo_router.indexer.event_index.actor import EventIndex

SMALL: dict[str, Any] = {
    "requests": 30,
    "block_size": (128,),
    "workers": (3,),
    "cache_tokens": 20_000,
    "rounds": 2,
}
HERE = [name for name in ("arrays", "lists", "events") if name in available_adapters()]


@pytest.mark.parametrize("make", [Arrays, Lists, Events])
def test_ours_answer_like_plain_dicts_all_along(make: type[IndexAdapter]) -> None:
    """Along a whole mixed phase, evictions included."""
    prompts = hash_prompts(sample_traffic(80), 64)
    plan = plan_workload(prompts, block_size=64, workers=4, cache_blocks=300)
    ours, plain = make(), Dicts()
    evictions = answers = 0
    for op in plan.mixed:
        for one in (ours, plain):
            if isinstance(op, Stored):
                one.store(one.ready_store(op))
            elif isinstance(op, Removed):
                one.remove(one.ready_remove(op))
        if isinstance(op, Removed):
            evictions += 1
        elif not isinstance(op, Stored):
            got, expected = (one.scores(one.match(one.ready_match(op))) for one in (ours, plain))
            assert got == expected
            answers += bool(expected)
    assert evictions > 10 and answers > 10


def test_dicts_by_hand() -> None:
    tree = Dicts()

    def hashes(*values: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        return np.array(values, np.uint64)

    def store(worker: int, parent: int | None, *blocks: int) -> None:
        names = hashes(*(100 + block for block in blocks))
        tree.store(tree.ready_store(Stored(worker, parent, names, hashes(*blocks))))

    store(1, None, 1, 2, 3)
    store(2, None, 1, 2)
    store(2, 102, 4)
    store(3, None, 9)
    assert tree.match([1, 2, 3, 5]) == {1: 3, 2: 2}
    assert tree.match([1, 2, 4]) == {1: 2, 2: 3}
    assert tree.match([7]) == {}
    tree.remove((1, [102]))
    assert tree.match([1, 2, 3]) == {1: 1, 2: 2}
    tree.remove((3, [109]))
    assert tree.match([9]) == {}
    tree.remove_worker(2)
    assert tree.match([1, 2, 4]) == {1: 1}
    tree.remove_worker(5)


def test_every_phase_of_every_index_is_measured(tmp_path: Path) -> None:
    config = IndexBenchConfig(**SMALL, trace=str(SAMPLE_TRACE), contender=tuple(HERE))
    results = measure_phases(config)
    assert [(result["phase"], result["contender"]) for result in results] == [
        (phase, name) for phase in PHASES for name in HERE
    ]
    for phase in PHASES:
        of_phase = [result for result in results if result["phase"] == phase]
        # The same operations for everybody.
        assert len({(result["operations"], result["blocks"]) for result in of_phase}) == 1
        assert of_phase[0]["operations"] > 0
        for result in of_phase:
            rate = result["blocks_per_s"]
            assert 0 < rate["min"] <= rate["median"] <= rate["max"]
            assert 0 < result["p50_us"]["median"] <= result["p99_us"]["median"]


TINY: dict[str, Any] = SMALL | {
    "max_blocks": 1200,
    "max_workers": 64,
    "event_seconds": 0.2,
    "rounds": 1,
    "contender": ("arrays",),
}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, drawn = tmp_path / "index.json", tmp_path / "pictures"
    assert run(IndexBenchConfig(**TINY, json=str(out), plot=str(drawn))) == 0
    shown = capsys.readouterr().out
    for words in (
        "remove worker",
        "B/entry",
        "through NATS",
        "dynamo is not",
    ):
        assert words in shown
    content = json.loads(out.read_text())
    assert content["benchmark"] == "index" and content["seed"] == 7
    for part in PARTS:
        assert content[part], part
    assert {result["contender"] for result in content["phases"]} == {"arrays"}
    assert content["environment"]["machine"]["cores"]
    assert all(isinstance(goal["met"], bool) for goal in content["goals"])
    assert sorted(path.name for path in drawn.iterdir()) == [
        "growth_blocks.png",
        "growth_workers.png",
    ]


def test_only_the_parts_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(IndexBenchConfig(**TINY, part=("drained",))) == 0
    shown = capsys.readouterr().out
    assert "until its mailbox is empty" in shown and "B/entry" not in shown


def test_a_part_that_fails_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(config: IndexBenchConfig) -> list[dict[str, Any]]:
        raise RouterError("no server")

    monkeypatch.setitem(command.MEASURES, "events", fail)
    out = tmp_path / "index.json"
    assert run(IndexBenchConfig(**TINY, part=("events", "drained"), json=str(out))) == 1
    assert "events failed: no server" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["failed"] == {"events": "no server"} and content["drained"]


def test_drained_counts_every_hash_once() -> None:
    (result,) = measure_drained(IndexBenchConfig(**TINY))
    prompts = hash_prompts(phases.read_requests(IndexBenchConfig(**TINY)), 128)
    mixed = plan_workload(prompts, block_size=128, workers=3, cache_blocks=20_000 // 128).mixed
    assert result["operations"] == len(mixed)
    assert result["blocks"] == sum(
        len(op.sequence_hashes) if isinstance(op, Removed) else len(op.local_hashes) for op in mixed
    )
    assert 0 <= result["drain_share"]["median"] <= 1 and result["waits"]["max"] == 0


def test_messages_of_the_drained_load_leave_the_index_as_the_calls_would() -> None:
    prompts = hash_prompts(sample_traffic(80), 64)
    mixed = plan_workload(prompts, block_size=64, workers=4, cache_blocks=300).mixed
    index, plain = EventIndex(), Dicts()
    try:
        for op, message in zip(mixed, as_messages(mixed), strict=True):
            if isinstance(message, bytes):
                index.apply(message)
            if isinstance(op, Stored):
                plain.store(plain.ready_store(op))
            elif isinstance(op, Removed):
                plain.remove(plain.ready_remove(op))
        counters = index.counters() | index.tier_counters()["device"]
        assert counters["unknown"] == counters["undecodable"] == 0
        for prompt in prompts[::5]:
            found = {worker.worker_id: n for worker, n in index.scores(prompt.local_hashes).items()}
            assert found == plain.match(prompt.local_hashes.tolist())
    finally:
        index.close()


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    config = IndexBenchConfig(**{**TINY, "contender": ("arrays", "lists")})
    (result,) = measure_memory(config)
    # Lists are another way into the same tree.
    assert result["contender"] == "arrays" and result["entries"] > 100
    assert min(result[key]["min"] for key in ("first", "second", "first_cpu", "second_cpu")) > 0


def test_a_child_that_fails_is_an_error_with_its_last_words() -> None:
    config = IndexBenchConfig(**{**TINY, "trace": "/no/such/trace"})
    with pytest.raises(RouterError, match="measuring the memory of arrays failed: .*no/such/trace"):
        measure_memory(config)


def test_growth_stops_where_it_is_told_to() -> None:
    results = measure_growth(IndexBenchConfig(**TINY))
    sizes = [(each["kind"], each[each["kind"]], each.get("held_by")) for each in results]
    assert sizes == [
        ("blocks", 1200, None),
        *(("workers", fleet, held) for fleet in (8, 64) for held in ("few", "all")),
    ]
    found = [each["workers_found"]["median"] for each in results[1:]]
    assert found == [8, 8, 8, 64]


def test_invented_prompts_share_what_tenants_share() -> None:
    prompts = list(invent_prompts(np.random.default_rng(1), 20_000))
    assert {len(prompt.local_hashes) for prompt in prompts} == {PROMPT}
    different = np.unique(np.concatenate([prompt.local_hashes for prompt in prompts]))
    assert 20_000 <= len(different) < 20_000 + PROMPT


def test_every_event_of_the_engines_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CACHED_RUNS", 4)  # so that engines evict
    full, steady = measure_events(IndexBenchConfig(**TINY))
    assert (full["load"], steady["load"]) == ("all", "steady")
    assert full["blocks_per_s"]["median"] > full["stored_per_s"]["median"] > 0
    assert 0 < steady["lag_p50_ms"]["median"] <= steady["lag_p99_ms"]["median"]


def test_goals_by_hand() -> None:
    def row(index: str, phase: str, rate: float) -> dict[str, Any]:
        figure = {"median": rate, "min": rate, "max": rate}
        key = {"block_size": 64, "workers": 8, "contender": index, "phase": phase}
        return key | {"blocks_per_s": figure, "p50_us": figure, "p99_us": figure}

    def point(workers: int, us: float) -> dict[str, Any]:
        where = {"kind": "workers", "contender": "arrays", "workers": workers, "held_by": "few"}
        return where | {"match_p50_us": {"median": us}}

    goals = judge(
        {
            "phases": [
                row("arrays", "store", 12e6),
                row("dynamo", "store", 2e6),
                row("events", "store", 4e6),
                row("arrays", "match", 1.5),
            ],
            "growth": [point(64, 1.0), point(4096, 3.5)],
        }
    )
    assert [(goal["name"], goal["measured"], goal["met"]) for goal in goals] == [
        ("store, arrays", 6.0, True),
        ("store, the peer's JSON", 2.0, False),
        ("match p50, arrays", 1.5, True),
        ("match p99, arrays", 1.5, True),
        ("match p50, workers over 64, few hold a prompt", 3.5, False),
    ]


def test_an_index_that_answers_wrongly_stops_the_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(Dicts):
        def match(self, ready: Any, /) -> object:
            scores: Any = super().match(ready)
            return {worker: overlap + 1 for worker, overlap in scores.items()}

    monkeypatch.setattr(phases, "available_adapters", lambda: {"plain": Dicts, "wrong": Wrong})
    monkeypatch.setattr(rivals, "dynamo_core", lambda: None)
    config = IndexBenchConfig(**SMALL)
    object.__setattr__(config, "contender", ("plain", "wrong"))  # not one of those it knows
    with pytest.raises(RouterError, match="wrong answers look-ups differently from plain"):
        measure_phases(config)


@pytest.mark.skipif(dynamo_core() is not None, reason="Dynamo's wheel is installed")
def test_dynamo_is_only_offered_where_it_is_installed() -> None:
    assert "dynamo" not in available_adapters()
    with pytest.raises(RouterError, match="ai-dynamo-runtime is not installed"):
        Dynamo()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requests", 0),
        ("rounds", 0),
        ("cache_tokens", 0),
        ("block_size", ()),
        ("block_size", (16, 0)),
        ("workers", (-1,)),
        ("contender", ("arrays", "fastest")),
        ("part", ("drained", "all")),
        ("max_blocks", 999),
        ("max_workers", 7),
        ("event_seconds", 0.0),
        ("event_seconds", float("nan")),
        ("seed", -1),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        IndexBenchConfig(**{key: value})
    assert caught.value.key == key


def test_no_such_core() -> None:
    with pytest.raises(ConfigError, match="cannot pin to core") as caught:
        run(IndexBenchConfig(**SMALL, core=10**6))
    assert caught.value.key == "core"
