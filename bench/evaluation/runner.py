"""Runs the cells of an evaluation, a process for each core, and keeps what came of them."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from ..simulation import Experiment, Load
from ..traces import encode_request
from ..traffic import TRAFFIC_BLOCK_SIZE, generate_traffic
from .cells import EvaluationCell, condition_of, request_rate, simulation_of
from .conditions import unnamed_flood
from .figures import Figures, figures_of
from .splits import Split, split_of

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class CellTask:
    """What one process does at a time: some policies in one cell, with one seed."""

    split: str
    cell: EvaluationCell
    seed: int
    policies: tuple[str, ...]
    requests: int
    capacity: bool
    folder: Path

    @property
    def traffic_path(self) -> Path:
        """The trace it runs; the family's own, but where more is sent."""
        fleet = f"{self.cell.fleet.workers}x{self.cell.fleet.load:g}"
        if condition_of(self.cell, split_of(self.split)).others is not None:
            fleet += f"-{self.cell.condition}"
        name = f"{self.split}-{self.cell.family}-{fleet}-{self.seed}-{self.requests}.jsonl"
        return self.folder / "traffic" / name


def write_traffic(task: CellTask, split: Split) -> Path:
    """Generate the task's traffic into its file; two at a time may write the same one."""
    path = task.traffic_path
    path.parent.mkdir(parents=True, exist_ok=True)
    flooded = condition_of(task.cell, split).others is not None
    make = unnamed_flood if flooded else generate_traffic
    made = make(
        split.traffic[task.cell.family],
        task.requests,
        rate=request_rate(task.cell, split),
        seed=task.seed,
        first_id=split.first_id,
    )
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_bytes(b"".join(map(encode_request, made)))
    written.replace(path)
    return path


def run_task(task: CellTask) -> list[tuple[str, Figures]]:
    """Each policy's figures."""
    split = split_of(task.split)
    simulation = simulation_of(task.cell, split, capacity=task.capacity)
    load = Load(
        trace=str(write_traffic(task, split)),
        trace_block_size=TRAFFIC_BLOCK_SIZE,
        seed=task.seed,
    )
    experiment = Experiment(simulation, load, task.cell.fleet.workers)
    variants = experiment.variants(",".join(task.policies))
    runs = [experiment.run(variant, task.seed).run for variant in variants]
    return [(name, figures_of(run)) for name, run in zip(task.policies, runs, strict=True)]


def run_tasks(
    tasks: Sequence[CellTask], jobs: int
) -> Iterator[tuple[CellTask, list[tuple[str, Figures]]]]:
    """Each task with its figures, as they come. Leaves no process behind, also when interrupted."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, run_task(task)
        return
    # Spawned, not forked: an index has a thread, and locks of a forked one may be held for ever.
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), get_context("spawn"), obey_the_parent, (os.getpid(),)
    )
    try:
        waiting = {pool.submit(run_task, task): task for task in tasks}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def obey_the_parent(parent: int) -> None:
    """In a worker of the pool of the process `parent`: Ctrl-C is for that one, and its end ends the
    worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
