"""demo --planner, short: every request is answered, and nothing is left behind."""

import os
import tempfile
from pathlib import Path

import pytest
from support.processes import alive, children_of

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.demo import DemoConfig
from dynamo_router.bench.planner_demo import Phase, run_planner_demo

SIZES = {"engines_max": 2, "block_size": 64, "num_gpu_blocks": 512, "seed": 0}


async def test_a_short_wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    phases = (Phase("calm", 2.0, 3.0), Phase("wave", 4.0, 3.0))
    done = await run_planner_demo(**SIZES, start_timeout_s=60.0, phases=phases, say=said.append)
    assert done.failed == 0
    rows = done.content["rows"]
    assert [row["phase"] for row in rows] == ["calm", "wave"]
    assert all(row["requests"] > 0 and row["ttft_ms"] > 0 for row in rows)
    assert rows[0]["engines_most"] >= 1
    first = done.decisions[0]["decision"]
    assert (first["id"], first["kind"], first["to"]) == (1, "rule", {"aggregated": 1})
    assert len(done.tables()) == 2
    assert any(line.startswith("dashboard: http://") for line in said)
    assert [pid for pid in children_of(os.getpid()) if alive(pid)] == []
    assert list(tmp_path.iterdir()) == []


async def test_a_process_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match="dynamo-router frontend was not ready within 0.01 s"):
        await run_planner_demo(**SIZES, start_timeout_s=0.01, say=lambda text: None)
    assert [pid for pid in children_of(os.getpid()) if alive(pid)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("modes", ("kv",)), ("requests", 5), ("arrival_speedup", 2.0), ("watch", True)],
)
def test_what_the_planner_s_demo_has_no_use_for_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key}: has no use with --planner"):
        DemoConfig(planner=True, **{key: value})  # type: ignore[arg-type]
