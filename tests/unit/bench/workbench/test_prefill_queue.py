"""The bench of the prefill queue: prompts go through it, beside what the server itself takes."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.prefill_queue import run
from dynamo_router.bench.workbench.settings import QueueBenchConfig


def test_each_kind_has_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    small = QueueBenchConfig(blocks=3, block_bytes=4096, prompts=2, rounds=2, json=str(path))
    assert run(small) == 0
    kinds = json.loads(path.read_text())["kinds"]
    assert set(kinds) == {"prompt", "message of a work queue", "message and its answer"}
    assert all(each["start_p50_ms"]["min"] > 0 for each in kinds.values())
    prompt = kinds["prompt"]
    assert prompt["landed_p50_ms"]["median"] > 0
    assert "Prompts of 3 blocks of 4096 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["blocks", "prompts", "rounds"])
def test_a_value_out_of_range_names_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        QueueBenchConfig(**{key: 0})
