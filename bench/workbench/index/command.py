"""dynamo-router bench index: every part in one run, the goals, JSON and pictures."""

from typing import Any

from ....base.errors import RouterError
from ...results import Output, pin_to_core, prepare_plots, unpin
from .config import IndexBenchConfig
from .drained import measure_drained
from .events import measure_events
from .goals import judge
from .growth import measure_growth
from .memory import measure_memory
from .phases import measure_phases
from .plots import draw_growth
from .tables import TABLES, goal_table

MEASURES = {
    "phases": measure_phases,
    "drained": measure_drained,
    "memory": measure_memory,
    "growth": measure_growth,
    "events": measure_events,
}


def run(config: IndexBenchConfig) -> int:
    """The command. Each part's table appears as soon as it is measured.

    A part that fails is reported, also in the JSON; the others go on, and the exit code is 1.
    """
    output = Output(config.json)
    if config.plot is not None:
        prepare_plots(config.plot)
    if config.core is not None:
        pin_to_core(config.core)
    if "dynamo" not in config.indexes:
        output.print("dynamo is not measured: ai-dynamo-runtime is not installed, or not asked for")
    results: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    for part in config.parts:
        if part == "events":
            unpin()  # three processes on one core would measure the scheduler
        try:
            results[part] = MEASURES[part](config)
        except RouterError as error:
            failed[part] = str(error)
            output.print(f"{part} failed: {error}")
        else:
            output.print(TABLES[part](results[part]))
    goals = judge(results)
    output.print(goal_table(goals))
    if config.plot is not None and results.get("growth"):
        for path in draw_growth(config.plot, results["growth"]):
            output.print(f"drawn: {path}")
    content = {
        "benchmark": "index",
        "pinned_to_core": config.core,
        "rounds": config.rounds,
        "seed": config.seed,
        "trace": config.trace,
        "requests": config.requests,
        "goals": goals,
        "failed": failed,
        **results,
    }
    output.write(content)
    return 1 if failed else 0
