"""The index benchmark: contenders that do the same work, and numbers that add up."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.bench import index
from dynamo_router.bench.contenders import (
    Arrays,
    Contender,
    Dicts,
    Dynamo,
    Events,
    Lists,
    available_contenders,
    dynamo_core,
)
from dynamo_router.bench.index import PHASES, IndexBenchConfig, measure_index, run
from dynamo_router.bench.sample import SAMPLE_TRACE, sample_traffic
from dynamo_router.bench.workload import Removed, Stored, hash_prompts, plan_workload
from dynamo_router.runtime.errors import ConfigError, RouterError

SMALL: dict[str, Any] = {
    "requests": 30,
    "block_size": (128,),
    "workers": (3,),
    "cache_tokens": 20_000,
    "rounds": 2,
}
HERE = [name for name in ("arrays", "lists", "events", "dicts") if name in available_contenders()]


@pytest.mark.parametrize("make", [Arrays, Lists, Events])
def test_ours_answer_like_plain_dicts_all_along(make: type[Contender]) -> None:
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


def test_every_phase_of_every_contender_is_measured(tmp_path: Path) -> None:
    config = IndexBenchConfig(**SMALL, trace=str(SAMPLE_TRACE), contender=tuple(HERE))
    results = measure_index(config)
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


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "index.json"
    assert run(IndexBenchConfig(**SMALL, contender=("arrays", "dicts"), json=str(out))) == 0
    shown = capsys.readouterr().out
    assert "hashing 8192 tokens" in shown and "mixed" in shown
    content = json.loads(out.read_text())
    assert content["benchmark"] == "index" and len(content["results"]) == 2 * len(PHASES)
    assert {result["contender"] for result in content["hashing"]} >= {"arrays", "lists"}
    assert content["environment"]["machine"]["cores"]


def test_a_contender_that_answers_wrongly_stops_the_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(Dicts):
        def match(self, ready: Any, /) -> object:
            scores: Any = super().match(ready)
            return {worker: overlap + 1 for worker, overlap in scores.items()}

    monkeypatch.setattr(index, "available_contenders", lambda: {"dicts": Dicts, "wrong": Wrong})
    with pytest.raises(RouterError, match="wrong answers look-ups differently from dicts"):
        measure_index(IndexBenchConfig(**SMALL))


@pytest.mark.skipif(dynamo_core() is not None, reason="Dynamo's wheel is installed")
def test_dynamo_is_only_offered_where_it_is_installed() -> None:
    assert "dynamo" not in available_contenders()
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
