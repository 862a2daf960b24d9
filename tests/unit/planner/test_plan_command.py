"""dynamo-router plan: rows by policy, every decision with its reasons, a page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.cli import main
from dynamo_router.planner.command import PlanConfig, run

FAST = (
    "--objective-ttft-ms=1500 --objective-itl-ms=25 --engines-max=5 --engine-speed=0.4 "
    "--start-up-s=20 --plan-budget-s=0.1 --no-progress"
).split()


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["dynamo-router", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)


def test_a_shape_is_planned_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, page = tmp_path / "day.json", tmp_path / "day.html"
    names = "plan,static-peak,bound-reachable"
    shape = ["--shape=sinus", "--requests=300", "--rate=2", f"--policies={names}"]
    command(monkeypatch, *shape, *FAST, f"--json={result}", f"--output={page}")
    content = json.loads(result.read_text())
    rows = {each["policy"]: each for each in content["rows"]}
    assert list(rows) == names.split(",")
    for name in ("attainment", "engine_hours", "changes", "aborted_streams"):
        assert all(name in each for each in rows.values())
    assert rows["plan"]["aborted_streams"] == 0
    assert content["requests"] == 300 == sum(content["minutes"]["arrivals"])
    assert content["minutes"]["engines"]["plan"][0]["at"] == 0
    good = sum(content["minutes"]["good"]["plan"])
    assert good == pytest.approx(300 * rows["plan"]["attainment"])
    for each in content["decisions"]["plan"]:
        assert {"from", "to", "reasons", "at", "id"} <= set(each)
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "Decisions of plan" in text and "http" not in text
    drawn = set(re.findall(r'class="(dot s\d)"', text))
    assert drawn == {"dot s1", "dot s2", "dot s4"}
    for kind in drawn:
        assert f".{kind.replace(' ', '.')}{{fill:" in text, "a legend has another colour"


def test_a_trace_is_planned_with_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        json.dumps(
            {
                "timestamp": 500 * n,
                "input_length": 600,
                "output_length": 40,
                "hash_ids": [1, 10 + n],
            }
        )
        for n in range(120)
    ]
    trace, result = tmp_path / "trace.jsonl", tmp_path / "day.json"
    trace.write_text("\n".join(lines))
    policies = "--policies=plan,keda,keda-tuned"
    command(monkeypatch, str(trace), *FAST, policies, f"--json={result}")
    assert len(json.loads(result.read_text())["rows"]) == 2  # nothing to tune on
    command(monkeypatch, str(trace), f"--train={trace}", *FAST, policies, f"--json={result}")
    assert len(json.loads(result.read_text())["rows"]) == 3


def test_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ["--shape=spike", "--requests=120", "--rate=2", "--policies=static-peak,keda"]
    rows = []
    for jobs in ("1", "2"):
        result = tmp_path / f"{jobs}.json"
        command(monkeypatch, *shape, *FAST, f"--jobs={jobs}", f"--json={result}")
        rows.append(json.loads(result.read_text())["rows"])
        for each in rows[-1]:
            del each["cpu_s"]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "trace: give a trace or --shape"),
        ({"trace": "a", "shape": "sinus"}, "trace: give a trace or --shape"),
        ({"shape": "square"}, "shape: 'square' is none of"),
        ({"shape": "sinus", "train": "a"}, "train: a shape makes its own"),
        ({"shape": "sinus", "requests": 3}, "requests: 3 must be at least"),
        ({"shape": "sinus", "rate": 0.0}, "rate: "),
        ({"shape": "sinus", "model_error": float("nan")}, "model_error: "),
        ({"shape": "sinus", "jobs": 0}, "jobs: "),
        ({"shape": "sinus", "policies": "plan,guess"}, "policies: guess is none of"),
        ({"shape": "sinus", "policies": " , "}, "policies: nothing is none of"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlanConfig(**settings)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "holds no request"),
        ("{}", "trace.jsonl"),
        ('{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}', "1 requests are no"),
        (
            '{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}\n' * 60,
            "all requests arrive at once",
        ),
    ],
)
def test_a_trace_that_is_no_day_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(lines)
    with pytest.raises(ConfigError, match=message):
        run(PlanConfig(trace=str(trace)))


def test_a_page_that_cannot_be_written_is_refused_before_hours_of_simulation() -> None:
    with pytest.raises(ConfigError, match="output: cannot write .*: no such folder"):
        run(PlanConfig(shape="sinus", output="/nowhere/page.html"))
