"""bench concurrent: it reads beside a writer, and says what it saw."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.index._read_write import read_prompts
from dynamo_router.bench.workbench.index.read_write import ConcurrentBenchConfig, make_workload, run
from dynamo_router.indexer.event_index import EventIndex


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "concurrent.json"
    config = ConcurrentBenchConfig(
        workers=8, readers=(1, 2), blocks=40_000, message_blocks=(100,), rounds=1, json=str(out)
    )
    assert run(config) == 0
    assert "readers" in capsys.readouterr().out
    results = json.loads(out.read_text())["results"]
    assert [r["readers"] for r in results] == [1, 2]
    for result in results:
        assert result["reads"]["min"] > 0 and result["blocks_per_s"]["min"] > 0
        assert 0 < result["p50_us"]["median"] <= result["max_us"]["median"]
        assert result["idle_reads_per_s"]["min"] > 0


def test_the_traffic_leaves_the_prompts_as_they_were() -> None:
    workload = make_workload(workers=8, blocks=2_000, message_blocks=100)
    with closing(EventIndex()) as index:
        for message in (*workload.before, *workload.traffic):
            assert index.post(message)
        index.flush()
        counters = index.counters() | index.tier_counters()["device"]
        assert counters["unknown"] == counters["invalid"] == counters["undecodable"] == 0
        assert counters["removed"] == workload.blocks // 2
        assert counters["stored"] == workload.blocks // 2 + len(workload.before) * 64
        for i in (0, 1, 255):
            prompt = workload.hashes[workload.starts[i] : workload.starts[i + 1]]
            scores = index.scores(prompt)
            assert sorted(w.worker_id for w, n in scores.items() if n == 64) == [i % 4, i % 4 + 4]


def test_a_reader_stops_when_told_or_when_its_array_is_full() -> None:
    workload = make_workload(workers=8, blocks=200, message_blocks=100)
    index = EventIndex()
    each = np.zeros(50, np.uint32)
    try:
        how: dict[str, Any] = {"seed": 1, "mean_gap_us": 0, "each_ns": each}
        stop = np.zeros(1, np.uint32)
        assert (
            read_prompts(index.native, workload.hashes, workload.starts, 8, stop=stop, **how) == 50
        )
        assert each.all()
        stop[0] = 1
        assert (
            read_prompts(index.native, workload.hashes, workload.starts, 8, stop=stop, **how) == 0
        )
        for numbers in (0, 4097):
            with pytest.raises(ValueError, match="too many workers"):
                read_prompts(
                    index.native, workload.hashes, workload.starts, numbers, stop=stop, **how
                )
        with pytest.raises(ValueError, match="prompts beyond the hashes"):
            read_prompts(index.native, workload.hashes[:5], workload.starts, 8, stop=stop, **how)
    finally:
        index.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workers", 0),
        ("workers", 4097),
        ("blocks", 0),
        ("mean_gap_us", 0),
        ("rounds", 0),
        ("readers", ()),
        ("readers", (1, 0)),
        ("message_blocks", (0,)),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ConcurrentBenchConfig(**{key: value})
    assert caught.value.key == key
