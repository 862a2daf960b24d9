"""The proxy benchmark: it runs from end to end, and its numbers are what they claim."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.proxy import ProxyBenchConfig, run


def test_a_short_run(tmp_path: Path) -> None:
    target = tmp_path / "proxy.json"
    config = ProxyBenchConfig(
        requests=4, rounds=2, workers=2, concurrency=2, output_tokens=(1, 3), json=str(target)
    )
    assert run(config) == 0
    result = json.loads(target.read_text())
    assert set(result["ways"]) == {"direct", "bare", "router"}
    for way in result["ways"].values():
        assert way["cpu_us"] > 0 and way["p50_us"] > 0
        assert len(way["token_us_rounds"]) == 2
    assert 3000 < result["request_bytes"] < 3200
    names = ["direct", "bare", "router"]
    measured = [(row["name"], row["output_tokens"]) for row in result["rows"]]
    assert measured == [(name, tokens) for tokens in (1, 3) for name in names]
    for row in result["rows"]:
        assert row["concurrency"] == 2
        assert row["cpu_us_per_request"] > 0 and row["requests_per_s"] > 0
        assert 0 < row["ttft_ms"]["p50"] <= row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
    assert result["cpu_ratio"] > 0 and "machine" in result["environment"]


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "tokens", "concurrency"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProxyBenchConfig(**{key: 0})
    assert caught.value.key == key
    with pytest.raises(ConfigError, match="output_tokens"):
        ProxyBenchConfig(output_tokens=())
