"""The bench of restarts: a router as a process comes to know again what a stream keeps."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.workbench import restart
from dynamo_router.bench.workbench.restart import Engines, RestartBenchConfig, run


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_it_knows_again_what_it_knew(
    kill: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    small = RestartBenchConfig(engines=2, messages=100, rounds=1, kill=kill, json=str(path))
    assert run(small) == 0
    row = json.loads(path.read_text())["starts"]
    assert row["known_s"]["median"] >= row["ready_s"]["median"] > 0
    assert row["known_cpu_s"]["median"] > 0 and row["retained_messages"]["median"] >= 2
    # A router that ended in peace has saved what it knew.
    assert row["restored_sources"]["median"] == (0 if kill else 2)
    assert f"a router {'killed' if kill else 'stopped'} and started" in capsys.readouterr().out


def test_a_router_that_stands_still_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(engines: Engines) -> None: ...

    monkeypatch.setattr(Engines, "publish", nothing)
    monkeypatch.setattr(restart, "STANDSTILL_S", 0.0)
    with pytest.raises(RouterError, match="stands still at 0 of 10"):
        run(RestartBenchConfig(engines=1, messages=10, rounds=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engines": 0}, "engines: 0 must be at least 1"),
        ({"rounds": 0}, "rounds: 0 must be at least 1"),
        ({"block_size": 0}, "block_size: 0 must be at least 1"),
        ({"messages": 7}, "messages: 7 is less than one of each engine"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RestartBenchConfig(**settings)  # type: ignore[arg-type]
