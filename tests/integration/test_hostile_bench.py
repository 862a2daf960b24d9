"""The hostile benchmark runs as a command: an engine and a caller that misbehave."""

import json
from pathlib import Path

from dynamo_router.bench.workbench.hostile.cells import PHASES
from dynamo_router.bench.workbench.hostile.command import HostileBenchConfig, run


def test_each_kind_of_process_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "hostile.json"
    kinds = ("engine-fail", "scraper")
    config = HostileBenchConfig(kind=kinds, rounds=1, seconds=1.5, workers=2, json=str(file))
    assert run(config) == 0
    content = json.loads(file.read_text())
    assert content["benchmark"] == "hostile"
    results = {result["kind"]: result for result in content["results"]}
    assert set(results) == set(kinds)
    for result in results.values():
        assert set(result["phases"]) == set(PHASES)
        answered = [figures for figures in result["phases"].values() if figures["requests"]]
        assert answered and all(figures["p99_ms"] > 0 for figures in answered)
        assert any(figures["requests"] for figures in result["direct"].values())
        before, most, after = result["memory_mib"]
        assert min(before, most, after) > 10 and result["router_cpu"] > 0
    assert results["scraper"]["peer_cpu"] > 0
