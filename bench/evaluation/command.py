"""The evaluation as a command: `bench grid --report`, or `--split` of what may be tuned on."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...process.setting_checks import require_at_least
from ...process.settings import bad_setting, option
from ..results import Output
from .cells import (
    QUICK_REQUESTS,
    QUICK_SEEDS,
    REQUESTS,
    SEEDS_OF_A_SPLIT,
    EvaluationCell,
    cells_of,
    wants_capacity,
)
from .kept_runs import KeptRuns
from .runner import CellTask, run_tasks, usable_cores
from .splits import REPORT, SPLIT_NAMES, TUNABLE, Split, split_of
from .tables import HOW_TO_READ, cells_table, evaluation_content, groups_table, summary_table
from .verdict import CellVerdict, judge_cell

# Each baseline in the variants that it is tuned over, anew in every cell and for every figure.
BASELINES = (
    *(f"dynamo:{scale}" for scale in (1, 4, 16, 64)),
    *(f"dynamo:{scale}+queue" for scale in (4, 16, 64)),
    "lmetric",
    *("llm-d", "llm-d:1:2:2", "llm-d:8:2:2"),
    *("preble", "preble:1.1", "preble:3"),
    "least-loaded",
)
QUICK_BASELINES = (
    *("dynamo:4", "dynamo:16", "dynamo:64", "dynamo:16+queue"),
    *("lmetric", "llm-d", "preble", "least-loaded"),
)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How to run an evaluation. Raises ConfigError, naming the key, on a bad value."""

    split: str | None = option(
        None,
        f"Without a trace: evaluate on these families, fleets and model errors; {REPORT} is"
        " --report.",
        choices=TUNABLE,
    )
    quick: bool = option(
        False, "Fewer cells, seeds, requests and baselines: minutes, and wide intervals."
    )
    jobs: int | None = option(None, "Processes that simulate; not given: one for each core.")
    cache: str = option("evaluation", "Folder where runs are kept, and taken from again.")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "jobs")
        if self.split is not None and self.split not in SPLIT_NAMES:
            raise bad_setting("split", f"{self.split!r} is none of {', '.join(SPLIT_NAMES)}")


class Evaluation:
    """The cells of a split, what is kept of them, and what is missing."""

    def __init__(
        self,
        split: Split,
        config: EvaluationConfig,
        *,
        policy: str,
        seeds: int | None = None,
        requests: int | None = None,
        capacity: bool = False,
    ) -> None:
        most = QUICK_SEEDS if config.quick else SEEDS_OF_A_SPLIT
        self.seeds = split.seeds[: most if seeds is None else seeds]
        if seeds is not None and seeds > len(split.seeds):
            raise bad_setting("seeds", f"{seeds}: a split has {len(split.seeds)}")
        self.split, self.policy, self._capacity = split, policy, capacity
        self.requests = requests or (QUICK_REQUESTS if config.quick else REQUESTS)
        self.names = (policy, *(QUICK_BASELINES if config.quick else BASELINES))
        self.cells = cells_of(split, quick=config.quick)
        self._folder = Path(config.cache) / split.name
        self.kept = KeptRuns(self._folder, requests=self.requests)
        self.runs = {cell: self.kept.read(cell) for cell in self.cells}

    def missing(self) -> list[CellTask]:
        """What has to be run, all cells with the first seed before any with the second."""
        tasks = []
        for seed in self.seeds:
            for cell in self.cells:
                searched = self._capacity and wants_capacity(cell, self.split)
                figures = {"ttft", "capacity"} if searched else {"ttft"}
                known = {key: each.keys() for key, each in self.runs[cell].items()}
                wanted = tuple(
                    name for name in self.names if not figures <= known.get((name, seed), set())
                )
                if wanted:
                    tasks.append(self._task(cell, seed, wanted, searched))
        return tasks

    def _task(
        self, cell: EvaluationCell, seed: int, policies: tuple[str, ...], capacity: bool
    ) -> CellTask:
        return CellTask(
            split=self.split.name,
            cell=cell,
            seed=seed,
            policies=policies,
            requests=self.requests,
            capacity=capacity,
            folder=self._folder,
        )

    def run(self, jobs: int) -> None:
        """Run what is missing and keep it; progress on stderr."""
        tasks = self.missing()
        if self.kept.outdated:
            print(f"{self.kept.outdated} kept runs are of other code: not used", file=sys.stderr)
        for done, (task, results) in enumerate(run_tasks(tasks, jobs), 1):
            for name, figures in results:
                self.kept.add(task.cell, name, task.seed, figures)
                self.runs[task.cell][name, task.seed] = figures
            text = f"{task.cell}, seed {task.seed}: {len(results)} policies"
            print(f"{done} of {len(tasks)}: {text}", file=sys.stderr)

    def verdicts(self) -> list[CellVerdict[EvaluationCell]]:
        """Of every cell in which the policy and a baseline have run, the worst first."""
        wanted = set(self.seeds)
        found = []
        for cell, runs in self.runs.items():
            counted = {
                key: figures
                for key, figures in runs.items()
                if key[0] in self.names and key[1] in wanted
            }
            verdict = judge_cell(cell, self.policy, counted)
            if verdict is not None:
                found.append(verdict)
        return sorted(found, key=lambda each: -each.behind)


def run_evaluation(
    config: EvaluationConfig,
    *,
    policy: str,
    seeds: int | None,
    requests: int | None,
    capacity: bool,
    json: str | None,
) -> int:
    """The command: 0, or 130 on Ctrl-C; then what there is, is shown."""
    output = Output(json, width=220)
    split = split_of(config.split or REPORT)
    evaluation = Evaluation(
        split, config, policy=policy, seeds=seeds, requests=requests, capacity=capacity
    )
    code = 0
    try:
        evaluation.run(config.jobs or usable_cores())
    except KeyboardInterrupt:
        print("interrupted: run it again to go on", file=sys.stderr)
        code = 130
    verdicts = evaluation.verdicts()
    title = f"split {split.name}, {len(verdicts)} cells, {len(evaluation.seeds)} seeds"
    output.print(cells_table(verdicts, policy))
    output.print(summary_table(verdicts, title))
    output.print(groups_table(verdicts))
    output.print(HOW_TO_READ)
    content: dict[str, Any] = {
        "benchmark": "evaluation",
        "split": split.name,
        "policy": policy,
        "baselines": list(evaluation.names[1:]),
        "seeds": list(evaluation.seeds),
        "requests": evaluation.requests,
        **evaluation_content(verdicts),
    }
    output.write(content)
    return code
