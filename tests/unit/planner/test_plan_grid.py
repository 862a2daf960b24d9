"""dynamo-router bench plan: cells, kept runs, verdicts."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.polling import wait_until
from support.processes import children_of

from dynamo_router.base.errors import ConfigError
from dynamo_router.cli import main
from dynamo_router.planner.grid.cells import BASE, DAYS, RIVALS, Cell, judge, run_cell
from dynamo_router.planner.grid.command import PlanGridConfig, _tasks, read_runs, verdicts_of

FAST = (
    "--requests=150 --rate=2 --engine-speed=0.4 --engines-max=5 --plan-budget-s=0.1 "
    "--objective-ttft-ms=1500 --objective-itl-ms=25"
).split()


def row(policy: str, attainment: float, hours: float, **more: Any) -> dict[str, Any]:
    figures = {"changes": 2, "hours": 1.0, "aborted_streams": 0, "over_budget_s": 0.0}
    return {"policy": policy, "attainment": attainment, "engine_hours": hours, **figures, **more}


def base(hours: float = 2.0) -> dict[str, dict[str, Any]]:
    """Rivals that all have as many good answers, for other engine hours."""
    found = {name: row(name, 0.96, hours + 1) for name in RIVALS}
    found["bound-reachable"] = row("bound-reachable", 0.98, hours)
    found["bound-clairvoyant"] = row("bound-clairvoyant", 0.98, hours - 0.2)
    return found


@pytest.mark.parametrize(
    ("day", "run", "lost"),
    [
        ("step", row("plan", 0.97, 2.2), ()),
        ("step", row("plan", 0.9, 2.2), ("target",)),
        ("step", row("plan", 0.97, 2.4), ("hours",)),
        ("step", row("plan", 0.95, 3.1), ("hours", "front")),
        ("sinus", row("plan", 0.97, 2.3), ("peak",)),
        ("step", row("plan", 0.97, 2.2, changes=9), ()),
        ("constant", row("plan", 0.97, 2.2, changes=3), ("changes",)),
        ("step", row("plan", 0.97, 2.2, aborted_streams=1), ("streams",)),
        ("step", row("plan", 0.97, 2.2, over_budget_s=5.0), ("budget",)),
    ],
)
def test_each_goal_that_is_missed_is_named(
    day: str, run: dict[str, Any], lost: tuple[str, ...]
) -> None:
    verdict = judge(Cell(day, 120.0), run, base(), 0.95)
    assert verdict.lost == lost
    assert verdict.on_front == ("front" not in lost)
    assert verdict.over_reachable == pytest.approx(run["engine_hours"] / 2)


def test_a_cell_s_rivals_are_named_where_they_beat_the_planner() -> None:
    rows = {**base(), "keda-tuned": row("keda-tuned", 0.98, 2.0)}
    assert judge(Cell("azure", 30.0), row("plan", 0.97, 2.2), rows, 0.95).beaten_by == "keda-tuned"


def test_a_grid_is_run_kept_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "grid.jsonl", tmp_path / "grid.json"
    given = [*FAST, "--days=silence", "--start-ups=20", f"--out={out}", f"--json={result}"]

    def command(*more: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["dynamo-router", "bench", "plan", *given, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        return json.loads(result.read_text())  # type: ignore[no-any-return]  # our own file

    content = command("--model-errors=1,hits")
    assert [each["cell"]["error"] for each in content["cells"]] in (["1", "hits"], ["hits", "1"])
    assert content["kept"]["streams"] == [2, 2] and content["summary"][0] == "2 of 2 cells were run"
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(each["rows"]) for each in kept] == [len(BASE), 1, 1]
    assert "bound-reachable" in capsys.readouterr().err
    again = command("--model-errors=1,hits,1.25", "--limit-s=0")
    assert again["summary"][0] == "2 of 3 cells were run"
    assert len(out.read_text().splitlines()) == 3


def test_a_part_of_the_grid_has_every_day_start_up_and_model_error() -> None:
    config = PlanGridConfig(trace="a.jsonl")
    cells = config.cells
    assert len(cells) == len(set(cells)) == 84
    assert {each.day for each in cells[:7]} == set(DAYS)
    assert {each.start_up_s for each in cells[:7]} == {30.0, 120.0, 300.0}
    assert {each.error for each in cells[:7]} == {"1", "0.8", "1.25", "hits"}
    assert len({(each.start_up_s, each.error) for each in cells[:14]}) >= 9


def test_runs_of_a_planner_that_has_changed_are_forgotten_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grid.jsonl"
    cells = [Cell("step", 30.0), Cell("sinus", 30.0), Cell("sinus", 30.0, "0.8")]
    lines = [{"cell": cell, "rows": [row("plan", 0.9, 3.0)]} for cell in cells]
    lines.insert(1, {"cell": cells[1], "rows": [*base().values()]})
    out.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    given = ["--forget=plan", "--days=sinus", "--start-ups=30", "--limit-s=0", f"--out={out}"]
    monkeypatch.setattr("sys.argv", ["dynamo-router", "bench", "plan", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    kept = read_runs(str(out))
    assert set(kept) == set(cells[:2])
    assert set(kept[cells[0]]) == {"plan"} and set(kept[cells[1]]) == set(base())
    config = PlanGridConfig(days="sinus", start_ups="30", model_errors="1,0.8")
    tasks = [cell for cell, names in _tasks(config, kept) if names == ("plan",)]
    assert tasks == cells[1:]


def test_what_no_start_up_changes_is_run_once_for_a_day() -> None:
    config = PlanGridConfig(days="sinus,step", start_ups="30,120", model_errors="1,0.8")
    tasks = _tasks(config, {})
    of_day = [cell for cell, names in tasks if "static-peak-tuned" in names]
    assert of_day == [Cell("sinus", 30.0), Cell("step", 120.0)]
    assert sum(names == ("plan",) for _, names in tasks) == 8
    kept: dict[Cell, dict[str, Any]] = {}
    for cell, names in tasks:
        kept.setdefault(cell, {}).update({name: row(name, 0.96, 2.0) for name in names})
    assert not _tasks(config, kept)
    assert len(verdicts_of(config, kept)) == 8
    del kept[Cell("step", 120.0)]["static-peak"]
    missing = [(Cell("step", 120.0), ("static-peak",))]
    assert _tasks(config, kept) == missing and len(verdicts_of(config, kept)) == 4


def test_prompts_of_another_day_are_seen_and_the_day_is_the_same() -> None:
    config = PlanGridConfig(requests=150, rate=2.0, engine_speed=0.4, plan_budget_s=0.1)
    policy = config.scene.comparison(Cell("sinus", 20.0, "hits"))._planner()
    day = config.scene.comparison(Cell("sinus", 20.0)).day
    assert policy._prompts is not None and policy._prompts.ids != day.ids
    other, same = (
        run_cell(config.scene, Cell("sinus", 20.0, error), ("static-peak",))[0]["engine_hours"]
        for error in ("hits", "1")
    )
    assert other == same


def test_a_row_is_the_same_on_a_machine_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a grid are limited by what they simulate: nothing of a row but `cpu_s` is timed."""
    config = PlanGridConfig(requests=300, rate=2.0, engine_speed=0.2, plan_budget_s=0.05)

    def plan() -> dict[str, Any]:
        (found,) = run_cell(config.scene, Cell("sinus", 20.0, "1.25"), ("plan",))
        return found

    first = plan()
    now = count(step=0.2)  # seconds that pass from one look at the clock to the next
    monkeypatch.setattr("time.process_time", lambda: float(next(now)))
    slow = plan()
    assert slow.pop("cpu_s") > 0 < first.pop("cpu_s") and next(now) > 0.2
    assert slow == first


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"days": "sinus,monday"}, "days"),
        ({"days": " , "}, "days"),
        ({"days": "mooncake"}, "days"),  # its trace is not given
        ({"start_ups": "30,soon"}, "start_ups"),
        ({"start_ups": "-3"}, "start_ups"),
        ({"model_errors": "nan"}, "model_errors"),
        ({"requests": 3}, "requests"),
        ({"jobs": 0}, "jobs"),
        ({"limit_s": -1.0}, "limit_s"),
        ({"forget": "plan,pan"}, "forget"),
        ({"plan_budget_s": 0.0}, "plan_budget_s"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        PlanGridConfig(**settings)


def test_what_is_no_kept_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "grid.jsonl"
    out.write_text("{}\n")
    monkeypatch.setattr("sys.argv", ["dynamo-router", "bench", "plan", f"--out={out}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (0, None)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children on Linux alone")
def test_cells_end_with_the_command_however_it_ends(tmp_path: Path) -> None:
    """No cell runs on once its command was stopped or killed."""
    given = [*FAST, "--requests=20000", f"--out={tmp_path / 'grid.jsonl'}", "--jobs=2"]
    code = [sys.executable, "-P", "-m", "dynamo_router", "bench", "plan", *given]
    with subprocess.Popen(code, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as command:
        workers = list[int]()

        def both_run() -> bool:
            workers[:] = [pid for pid in children_of(command.pid) if _is_worker(pid)]
            return len(workers) == 2

        wait_until(both_run, 60)
        command.kill()
        command.wait()
    wait_until(lambda: not any(map(_is_worker, workers)), 60)


def _is_worker(pid: int) -> bool:
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
