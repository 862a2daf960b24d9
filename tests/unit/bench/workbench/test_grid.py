"""The grid runs what is missing, keeps it, and judges fairly."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.workbench.grid import GridConfig, cells, judge, run, run_grid
from dynamo_router.bench.workbench.grid_cells import Cell, read_runs

BASE = Cell(8, 1.0, 1.0, 0.0, 0.0)


def config(tmp_path: Path, **more: Any) -> GridConfig:
    small = {
        "trace": str(SAMPLE_TRACE),
        "out": str(tmp_path / "grid.jsonl"),
        "requests": 20,
        "workers": "2",
        "rates": "1",
        "caches": "1",
        "delays_ms": "0",
        "losses": "0.5",
        "scales": "1,4",
        "baselines": "",
        "model_errors": "none",
        "seeds": 1,
    }
    return GridConfig(**{**small, **more})


def test_sizes_are_combined_and_events_are_varied_at_the_base(tmp_path: Path) -> None:
    grid = config(tmp_path, workers="4,8", rates="1,2", caches="1", delays_ms="0,10", losses="0,1")
    assert cells(grid) == [
        Cell(4, 1.0, 1.0, 0.0, 0.0),
        Cell(4, 2.0, 1.0, 0.0, 0.0),
        BASE,
        Cell(8, 2.0, 1.0, 0.0, 0.0),
        Cell(8, 1.0, 1.0, 0.0, 1.0),
        Cell(8, 1.0, 1.0, 10.0, 0.0),
        Cell(8, 1.0, 1.0, 10.0, 1.0),
    ]
    assert str(cells(grid)[-1]) == "8 workers, rate 1, cache 1, events 10 ms late, 100% lost"


def test_a_grid_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = config(tmp_path, json=str(tmp_path / "cells.json"))
    assert run(grid) == 0
    first = Path(grid.out).read_text().splitlines()
    assert len(first) == 2 * 3
    Path(grid.out).write_text("\n".join(first[:-2]) + "\n")
    capsys.readouterr()
    assert run(grid) == 0
    assert capsys.readouterr().err.count("TTFT") == 2
    assert sorted(Path(grid.out).read_text().splitlines()) == sorted(first)
    assert not list(run_grid(grid, read_runs(grid.out)))
    document = json.loads((tmp_path / "cells.json").read_text())
    assert sorted(each["cell"]["workers"] for each in document["cells"]) == [2, 8]
    assert document["cells"][0]["seeds"] == [0] and document["cells"][0]["failed"] == 0


def test_baselines_and_model_errors_are_cells_and_contestants_too(tmp_path: Path) -> None:
    grid = config(
        tmp_path, losses="0", baselines="lmetric,dynamo:1+queue", model_errors="no-events,attention"
    )
    base = Cell(8, 1.0, 1.0, 0.0, 0.0)
    assert cells(grid)[1:] == [base, *(base._replace(error=e) for e in ("no-events", "attention"))]
    assert str(cells(grid)[-1]).endswith("cache 1, attention")
    rows = [row for row in run_grid(grid, {}) if row[0].error]
    names = ["forecast", "dynamo:1", "dynamo:4", "lmetric", "dynamo:1+queue"]
    assert [row[1] for row in rows] == 2 * names
    plain = {row[1]: row[3] for row in run_grid(config(tmp_path, workers="8", losses="0"), {})}
    assert all(
        row[3]["ttft"] > plain["forecast"]["ttft"] for row in rows if row[0].error == "attention"
    )


def test_runs_of_which_less_was_kept_are_run_again(tmp_path: Path) -> None:
    grid = config(tmp_path, losses="0", scales="4", workers="8")
    kept = {(c, p, s): f for c, p, s, f in run_grid(grid, {})}
    first = next(iter(kept))
    assert 0 < kept[first]["goodput_relative"] <= 1
    del kept[first]["goodput_relative"]
    assert [row[:3] for row in run_grid(grid, kept)] == [first]
    searched = config(tmp_path, losses="0", scales="4", workers="8", requests=10, capacity=True)
    assert all(row[3]["capacity"] > 0 for row in run_grid(searched, {}))


def test_the_worst_cell_is_first_and_goodput_is_judged_where_all_have_it() -> None:
    cells = [BASE, BASE._replace(rate=2.0), BASE._replace(error="attention")]
    good = [0.99, 0.8, None]
    kept = {
        (cell, name, 0): figures(1.0, **({} if share is None else shares(share * part)))
        for cell, share in zip(cells, good, strict=True)
        for name, part in (("forecast", 1.0 if share == 0.99 else 0.9), ("lmetric", 1.0))
    }
    found = judge(kept, "forecast")
    assert [each.cell for each in found][0] == cells[1]
    by_cell = {each.cell: each for each in found}
    assert by_cell[cells[1]].figures["goodput_relative"].ratio == pytest.approx(0.9)
    assert by_cell[cells[1]].behind == pytest.approx(1 / 0.9)
    assert not {"goodput_relative", "capacity"} & by_cell[cells[2]].figures.keys()


def shares(relative: float) -> dict[str, float]:
    return {"goodput_relative": relative, "goodput_absolute": 1.0, "engine_s_per_1000_good": 1.0}


def figures(ttft: float, **more: float) -> dict[str, float]:
    same = dict.fromkeys(
        ("ttft_p99", "e2e", "hit_rate", "of_pooled", "balance", "rejected", "errors"), 1.0
    )
    return {"ttft": ttft, **same, **more}


def test_every_figure_is_held_against_the_scale_that_is_best_at_it() -> None:
    kept = {
        (BASE, "forecast", 0): figures(90.0, e2e=10.0),
        (BASE, "forecast", 1): figures(110.0, e2e=10.0),
        (BASE, "dynamo:1", 0): figures(300.0, e2e=8.0),
        (BASE, "dynamo:1", 1): figures(300.0, e2e=8.0),
        (BASE, "dynamo:16", 0): figures(125.0, e2e=20.0),
        (BASE, "dynamo:16", 1): figures(125.0, e2e=20.0),
        (BASE, "dynamo:64", 0): figures(1.0),  # has not run with both seeds
        (Cell(4, 1.0, 1.0, 0.0, 0.0), "forecast", 0): figures(1.0),  # and here nobody else has
    }
    (found,) = judge(kept, "forecast")
    assert found.cell == BASE and found.seeds == (0, 1)
    ttft, e2e = found.figures["ttft"], found.figures["e2e"]
    assert (ttft.own, ttft.best, ttft.rival, ttft.ratio) == (100.0, 125.0, "dynamo:16", 0.8)
    assert (e2e.rival, e2e.ratio) == ("dynamo:1", 1.25)
    assert found.failed == 2.0


@pytest.mark.parametrize(
    "key, value, reason",
    [
        ("seeds", 0, "must be at least 1"),
        ("workers", "4,x", "are no numbers with commas"),
        ("workers", "0", "all must be greater than 0"),
        ("rates", "-1", "none may be negative"),
        ("caches", "nan", "none may be negative"),
        ("losses", "", "are no numbers"),
        ("model_errors", "attention,x", "'x' is none of"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .*{reason}"):
        config(tmp_path, **{key: value})


@pytest.mark.parametrize("line", ["{}", "not json", '{"cell": [1], "policy": "a", "seed": 0}'])
def test_a_file_that_is_no_grid_is_refused(tmp_path: Path, line: str) -> None:
    target = tmp_path / "other.jsonl"
    target.write_text(line + "\n")
    with pytest.raises(ConfigError, match="other.jsonl, line 1 is no run of a grid"):
        read_runs(str(target))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out: cannot write"):
        run(config(tmp_path, out=str(tmp_path / "no" / "grid.jsonl")))


def test_what_is_kept_can_be_shown_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    grid = config(tmp_path, plot=str(tmp_path / "grid.png"))
    Path(grid.out).write_text(
        "".join(
            json.dumps({"cell": cell, "policy": name, "seed": 0, "figures": figures(ttft)}) + "\n"
            for cell in (BASE, Cell(64, 0.5, 4.0, 0.0, 0.0), Cell(8, 1.0, 1.0, 10.0, 0.1))
            for name, ttft in (("forecast", 90.0), ("dynamo:4", 100.0))
        )
    )
    assert run(config(tmp_path, report=True, plot=grid.plot)) == 0
    shown = capsys.readouterr().out
    assert shown.count("0.900") == 3 and "64 workers, rate 0.5, cache 4" in shown
    assert (tmp_path / "grid.png").stat().st_size > 5000
