"""The bench of block transfers: every way has figures, and moves what it says."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.transfer import TransferBenchConfig, run


def test_every_way_has_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    small = TransferBenchConfig(blocks=3, transfers=2, rounds=2, json=str(path))
    assert run(small) == 0
    result = json.loads(path.read_text())
    ways = {"copy", "shm write", "shm read"}
    if find_spec("nixl") is not None:
        ways |= {"nixl write", "nixl read"}
    else:
        assert "pip install" in result["left_out"]["nixl"]
    assert set(result["ways"]) == ways
    assert all(each["p50_ms"]["min"] > 0 for each in result["ways"].values())
    assert result["ways"]["copy"]["share"] == 1.0
    assert "share of a copy" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["blocks", "transfers", "rounds"])
def test_a_value_out_of_range_names_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        TransferBenchConfig(**{key: 0})
