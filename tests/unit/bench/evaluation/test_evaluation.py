"""The evaluation runs what is missing, keeps it, and shows the worst first."""

import json
import math
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, cast

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.evaluation.cells import EvaluationCell, cells_of, simulation_of
from dynamo_router.bench.evaluation.command import Evaluation, EvaluationConfig
from dynamo_router.bench.evaluation.kept_runs import KeptRuns
from dynamo_router.bench.evaluation.runner import run_tasks
from dynamo_router.bench.evaluation.splits import FleetSize, split_of
from dynamo_router.bench.evaluation.verdict import judge_cell, summarise_figure
from dynamo_router.bench.workbench.grid import GridConfig, run

TRAIN = split_of("train")
CELL = EvaluationCell("batch", FleetSize(2, 512, 0.5))
FIGURES = {
    "ttft": 1.0, "ttft_p99": 1.0, "e2e": 1.0, "goodput_relative": 1.0,
    "engine_s_per_1000_good": 1.0, "rejected": 0.0, "errors": 0.0,
}  # fmt: skip


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells and two baselines."""
    cells = [CELL, CELL._replace(error="no-events")]
    monkeypatch.setattr(
        "dynamo_router.bench.evaluation.command.cells_of", lambda split, quick: cells
    )
    names = ("dynamo:4", "least-loaded")
    monkeypatch.setattr("dynamo_router.bench.evaluation.command.QUICK_BASELINES", names)


def config(tmp_path: Path, **more: Any) -> GridConfig:
    evaluation = EvaluationConfig(quick=True, jobs=1, cache=str(tmp_path), split="train")
    return GridConfig(**{"evaluation": evaluation, "requests": 12, "seeds": 2, **more})


def evaluation(tmp_path: Path, **more: Any) -> Evaluation:
    settings: dict[str, Any] = {"policy": "forecast", "requests": 12, **more}
    return Evaluation(TRAIN, EvaluationConfig(quick=True, cache=str(tmp_path)), **settings)


def test_cells_are_families_in_fleets_and_errors_in_the_first(tmp_path: Path) -> None:
    cells = cells_of(TRAIN)
    more = sum(map(len, TRAIN.conditions.values()))
    assert len(cells) == len(set(cells)) == len(TRAIN.traffic) * (2 + len(TRAIN.errors)) + more
    assert {cell.fleet for cell in cells if cell.error} == {TRAIN.fleets[0]}
    quick = cells_of(TRAIN, quick=True)
    assert set(quick) < set(cells) and len(quick) == len(TRAIN.traffic) + len(TRAIN.errors) + more
    late = simulation_of(CELL._replace(error="late-events"), TRAIN, capacity=True)
    assert late.event_delay_ms == 20_000 and not late.search.capacity
    plain = simulation_of(EvaluationCell("batch", TRAIN.fleets[0]), TRAIN, capacity=True)
    assert plain.search.capacity and plain.num_gpu_blocks == TRAIN.fleets[0].num_gpu_blocks


def test_what_was_run_is_kept_and_shown_again(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "cells.json"
    assert run(config(tmp_path, json=str(target))) == 0
    out, err = capsys.readouterr()
    assert err.count("3 policies") == 4 and "forecast, worst cells first" in out
    document = json.loads(target.read_text())
    assert document["split"] == "train" and document["seeds"] == [101, 102]
    behind = [each["behind"] for each in document["cells"]]
    assert len(behind) == 2 and behind == sorted(behind, reverse=True)
    first = document["cells"][0]["figures"]["ttft"]
    assert first["low"] <= first["ratio"] <= first["high"] and len(first["by_seed"]) == 2
    assert document["summary"]["ttft"]["low"] <= document["summary"]["ttft"]["geometric_mean"]
    assert run(config(tmp_path)) == 0
    assert "policies" not in capsys.readouterr().err


def test_an_interrupted_evaluation_goes_on(few: None, tmp_path: Path) -> None:
    begun = evaluation(tmp_path, seeds=1)
    (task, _), *_ = run_tasks(begun.missing()[:1], 1)
    begun.kept.add(task.cell, "forecast", 101, {**FIGURES})
    (tmp_path / "train").joinpath("half.jsonl").write_text("")
    again = evaluation(tmp_path, seeds=1)
    assert [task.policies for task in again.missing()] == [
        ("dynamo:4", "least-loaded"),
        ("forecast", "dynamo:4", "least-loaded"),
    ]


def test_capacity_is_looked_for_where_it_was_asked(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dynamo_router.bench.evaluation.command.wants_capacity", lambda cell, _: not cell.error
    )
    first = evaluation(tmp_path, seeds=1)
    first.run(1)
    assert not first.missing()
    searched = evaluation(tmp_path, seeds=1, capacity=True)
    assert [(task.cell, task.capacity) for task in searched.missing()] == [(CELL, True)]


def test_runs_of_other_code_or_length_do_not_count(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path / "a", requests=10)
    kept.add(CELL, "forecast", 1, {"ttft": 1.5, "e2e": math.inf})
    assert kept.read(CELL) == {("forecast", 1): {"ttft": 1.5, "e2e": math.inf}}
    (path,) = (tmp_path / "a").glob("*.jsonl")
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "code": "other"}) + '\n{"cut of')
    assert kept.read(CELL) == {} and kept.outdated == 1
    assert KeptRuns(tmp_path / "a", requests=11).read(CELL) == {}
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="cache: cannot write into"):
        KeptRuns(file, requests=1)


@pytest.fixture
def no_tracker() -> Iterator[None]:
    """End the process that Python itself keeps beside those of a pool: it would stay till the end
    of the tests, of which some count their processes."""
    yield
    cast(Any, resource_tracker)._resource_tracker._stop()


@pytest.mark.usefixtures("no_tracker")
def test_processes_answer_as_one_does(few: None, tmp_path: Path) -> None:
    tasks = evaluation(tmp_path, seeds=1).missing()
    alone = {task.cell: results for task, results in run_tasks(tasks, 1)}
    assert {task.cell: results for task, results in run_tasks(tasks, 2)} == alone


def runs(**by_policy: list[dict[str, float]]) -> dict[tuple[str, int], dict[str, float]]:
    return {
        (name, seed): {**FIGURES, **figures}
        for name, seeds in by_policy.items()
        for seed, figures in enumerate(seeds)
    }


def test_each_figure_is_beside_the_baseline_that_is_best_at_it() -> None:
    found = judge_cell(
        CELL,
        "ours",
        runs(
            ours=[{"ttft": 90.0, "e2e": 12.0}, {"ttft": 110.0, "e2e": 12.0}],
            a=[{"ttft": 125.0, "e2e": 10.0}, {"ttft": 125.0, "e2e": 10.0}],
            b=[{"ttft": 300.0, "e2e": 8.0}, {"ttft": 300.0, "e2e": 8.0}],
            c=[{"ttft": 1.0, "e2e": 1.0}],  # has not run with both seeds
        ),
    )
    assert found is not None
    assert (found.figures["ttft"].rival, found.figures["e2e"].rival) == ("a", "b")
    assert found.figures["ttft"].ratio == pytest.approx(0.8)
    assert found.worst_figure == "e2e" and found.behind == pytest.approx(1.5)
    assert judge_cell(CELL, "ours", runs(ours=[{}])) is None
    assert judge_cell(CELL, "ours", runs(a=[{}])) is None


def test_a_policy_that_serves_nobody_well_is_the_worst() -> None:
    cases = {"none": 0.0, "half": 0.5}
    verdicts = {
        name: judge_cell(
            CELL,
            "ours",
            runs(ours=[{"goodput_relative": share}] * 2, a=[{"goodput_relative": 1.0}] * 2),
        )
        for name, share in cases.items()
    }
    none, half = verdicts["none"], verdicts["half"]
    assert none is not None and half is not None
    assert none.worst_figure == "goodput_relative"
    assert none.behind == pytest.approx(20) and half.behind == pytest.approx(2)
    both = summarise_figure("goodput_relative", [none, half])
    assert both is not None and both.worst == pytest.approx(0.05)
    assert both.geometric_mean == pytest.approx(math.sqrt(0.05 * 0.5))
    nobody = judge_cell(CELL, "ours", runs(ours=[{"ttft": math.inf}] * 2, a=[{"ttft": 1.0}] * 2))
    assert nobody is not None and nobody.behind == math.inf


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"evaluation": EvaluationConfig()}, "trace: is needed, or --report, or --split"),
        ({"trace": "a.jsonl"}, "split: has traffic of its own"),
        ({"seeds": 5, "requests": 1}, "seeds: 5: a split has 4"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        run(config(tmp_path, **settings))
    with pytest.raises(ConfigError, match="jobs: 0 must be at least 1"):
        EvaluationConfig(jobs=0)
    with pytest.raises(ConfigError, match="split: 'x' is none of"):
        EvaluationConfig(split="x")
