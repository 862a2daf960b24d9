"""dynamo-router bench index: every part in one run, the goals, JSON and pictures."""

from typing import Any

from ..environment import describe_environment, pin_to_core, unpin
from ..report import check_json_target, table_console, write_json
from .config import IndexBenchConfig
from .drained import measure_drained
from .event_path import measure_events
from .goals import judge
from .growth import measure_growth
from .hashing import measure_hashing
from .memory import measure_memory
from .phases import measure_phases
from .tables import TABLES, goal_table

MEASURES = {
    "hashing": measure_hashing,
    "phases": measure_phases,
    "drained": measure_drained,
    "memory": measure_memory,
    "growth": measure_growth,
    "events": measure_events,
}


def run(config: IndexBenchConfig) -> int:
    """The command. Each part's table appears as soon as it is measured."""
    check_json_target(config.json)
    if config.plot is not None:
        from .plots import draw, prepare

        prepare(config.plot)
    if config.core is not None:
        pin_to_core(config.core)
    console = table_console(config.json)
    if "dynamo" not in config.contenders:
        console.print(
            "dynamo is not measured: ai-dynamo-runtime is not installed, or not asked for"
        )
    results: dict[str, list[dict[str, Any]]] = {}
    for part in config.parts:
        if part == "events":
            unpin()  # three processes on one core would measure the scheduler
        results[part] = MEASURES[part](config)
        console.print(TABLES[part](results[part]))
    goals = judge(results)
    console.print(goal_table(goals))
    if config.plot is not None and results.get("growth"):
        for path in draw(config.plot, results["growth"]):
            console.print(f"drawn: {path}")
    if config.json is not None:
        content = {
            "benchmark": "index",
            "pinned_to_core": config.core,
            "rounds": config.rounds,
            "seed": config.seed,
            "trace": config.trace,
            "requests": config.requests,
            "goals": goals,
            **results,
            "environment": describe_environment(),
        }
        write_json(config.json, content)
    return 0
