"""The bench of events over ZMQ: what engines say arrives, and bad settings are named."""

import json
import sys
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.workbench.stream_source import (
    CACHED_RUNS,
    RUNS,
    StreamLoad,
    grpc_batch,
    payloads,
)
from dynamo_router.bench.workbench.streams import StreamsBenchConfig, run
from dynamo_router.workers.trtllm_proto import common_pb


@pytest.mark.parametrize(
    ("way", "rate"),
    [("zmq", 0.0), ("grpc", 0.0), ("grpc", 20_000.0), ("nats", 0.0), ("nats", 20_000.0)],
)
def test_it_ends_with_all_seen(
    way: str, rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    small = StreamsBenchConfig(
        way=way,
        blocks_per_s=rate,
        engines=2,
        block_size=4,
        run_blocks=8,
        messages=40,
        rounds=1,
        json=str(path),
    )
    assert run(small) == 0
    row = json.loads(path.read_text())["streams"]
    assert row["stored_per_s"]["min"] > 0 and row["bytes_per_message"]["min"] > 8 * 4
    assert ("lag_p50_ms" in row) is (way == "nats" and rate > 0)
    assert "stored blocks/s" in capsys.readouterr().out


def test_engines_that_cannot_begin_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RouterError, match="the engines of the benchmark failed"):
        run(StreamsBenchConfig(engines=1, messages=1, rounds=1))


def test_each_run_is_removed_before_it_comes_again() -> None:
    load = StreamLoad(
        way="zmq", engines=1, messages=1, block_size=4, run_blocks=3, blocks_per_s=0.0, seed=1
    )
    held: set[int] = set()
    for turn, payload in enumerate(payloads(load, 0) * 2):
        removed, stored = common_pb.KvEventBatch.FromString(grpc_batch(payload)).events
        held.difference_update(removed.removed.block_hashes)
        new = {block.block_hash for block in stored.stored.blocks}
        assert len(new) == 3 and not held & new
        held |= new
        assert len(held) == 3 * min(turn + 1, CACHED_RUNS)
    assert CACHED_RUNS < RUNS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("way", "http"),
        ("engines", 0),
        ("block_size", 0),
        ("messages", 0),
        ("blocks_per_s", -1.0),
        ("seed", -1),
    ],
)
def test_a_value_out_of_range_names_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        StreamsBenchConfig(**{key: value})  # type: ignore[arg-type]
