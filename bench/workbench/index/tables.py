"""The results of the index benchmark for people: a table per part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from ...results import format_number, new_table
from .hashing import HASH_TOKENS

Rows = Sequence[dict[str, Any]]


def millions(value: float) -> str:
    return f"{value / 1e6:,.2f} M"


def spread_of(figure: Mapping[str, float]) -> str:
    """How far the rounds lie apart, against their median."""
    return f"{(figure['max'] - figure['min']) / figure['median']:.0%}" if figure["median"] else "-"


def _table(title: str, words: Sequence[str], figures: Sequence[str]) -> Table:
    table = new_table(*words, title=title)
    for column in figures:
        table.add_column(column, justify="right")
    return table


def phase_table(results: Rows) -> Table:
    """Each index's throughput, also as a multiple of Dynamo's, if that ran.

    By CPU the multiple holds on a busy machine too; it leaves out what Dynamo's calls wait.
    """
    table = _table(
        "phases; like for like with dynamo: events (same bytes in), lists (list in, dict out)",
        ("block", "workers", "phase", "contender"),
        ("blocks/s", "spread", "calls/s", "p50 us", "p99 us", "x dynamo", "x by CPU"),
    )
    by_row = {_row(result): result for result in results}
    for result in results:
        rate = result["blocks_per_s"]
        peer = by_row.get((*_row(result)[:3], "dynamo"))
        table.add_row(
            str(result["block_size"]),
            str(result["workers"]),
            result["phase"],
            result["contender"],
            millions(rate["median"]),
            spread_of(rate),
            format_number(result["operations_per_s"]["median"], 0),
            format_number(result["p50_us"]["median"], 1),
            format_number(result["p99_us"]["median"], 1),
            *(
                format_number(result[key]["median"] / peer[key]["median"] if peer else None, 2)
                for key in ("blocks_per_s", "blocks_per_cpu_s")
            ),
        )
    return table


def _row(result: Mapping[str, Any]) -> tuple[int, int, str, str]:
    return result["block_size"], result["workers"], result["phase"], result["contender"]


def hashing_table(results: Rows) -> Table:
    table = _table(f"hashing {HASH_TOKENS} tokens", ("block", "contender"), ("us", "tokens/s"))
    for result in results:
        table.add_row(
            str(result["block_size"]),
            result["contender"],
            format_number(result["call_us"]["median"], 1),
            f"{result['tokens_per_s'] / 1e6:,.0f} M",
        )
    return table


def drained_table(results: Rows) -> Table:
    table = _table(
        "mixed through EventIndex, until its mailbox is empty",
        ("block", "workers"),
        (
            *("logical ops/s", "block ops/s", "spread", "by CPU", "of it draining"),
            *("match p50 us", "p99 us"),
        ),
    )
    for result in results:
        table.add_row(
            str(result["block_size"]),
            str(result["workers"]),
            format_number(result["operations_per_s"]["median"], 0),
            millions(result["blocks_per_s"]["median"]),
            spread_of(result["blocks_per_s"]),
            millions(result["blocks_per_cpu_s"]["median"]),
            f"{result['drain_share']['median']:.0%}",
            format_number(result["match_p50_us"]["median"], 1),
            format_number(result["match_p99_us"]["median"], 1),
        )
    return table


def memory_table(results: Rows) -> Table:
    table = _table(
        "memory; blocks/s and page faults of a process's first tree and its second",
        ("block", "workers", "contender"),
        ("entries", "B/entry", "first tree/s", "second", "by CPU", "second", "faults", "second"),
    )
    for result in results:
        table.add_row(
            str(result["block_size"]),
            str(result["workers"]),
            result["contender"],
            format_number(result["entries"], 0),
            format_number(result["bytes_per_entry"]["median"], 1),
            millions(result["first"]["median"]),
            *(millions(result[key]["median"]) for key in ("second", "first_cpu", "second_cpu")),
            *(format_number(result[key]["median"], 0) for key in ("first_faults", "second_faults")),
        )
    return table


def growth_table(results: Rows) -> Table:
    table = _table(
        "growth",
        ("contender", "of", "held by"),
        ("size", "match p50 us", "p99 us", "workers found", "store blocks/s", "B/block"),
    )
    for result in results:
        kind = result["kind"]
        medians = {key: each["median"] for key, each in result.items() if isinstance(each, dict)}
        rate = medians.get("store_blocks_per_s")
        table.add_row(
            result["contender"],
            kind,
            result.get("held_by", ""),
            format_number(result[kind], 0),
            format_number(medians["match_p50_us"], 2),
            format_number(medians["match_p99_us"], 2),
            format_number(medians.get("workers_found"), 0),
            "-" if rate is None else millions(rate),
            format_number(medians.get("bytes_per_block"), 1),
        )
    return table


def event_table(results: Rows) -> Table:
    table = _table(
        "through NATS until visible; events and KB of a message, CPU of a core",
        ("load", "workers"),
        (
            *("stored/s", "spread", "+ evicted", "messages/s", "events", "KB"),
            *("CPU router", "engines", "lag p50 ms", "p99 ms"),
        ),
    )
    for result in results:
        medians = {key: each["median"] for key, each in result.items() if isinstance(each, dict)}
        table.add_row(
            result["load"],
            str(result["workers"]),
            millions(medians["stored_per_s"]),
            spread_of(result["stored_per_s"]),
            millions(medians["blocks_per_s"]),
            format_number(medians["messages_per_s"], 0),
            format_number(medians["events_per_message"], 1),
            format_number(medians["bytes_per_message"] / 1000, 1),
            f"{medians['router_cpu_share']:.0%}",
            f"{medians['engines_cpu_share']:.0%}",
            format_number(medians.get("lag_p50_ms"), 2),
            format_number(medians.get("lag_p99_ms"), 2),
        )
    return table


def goal_table(goals: Rows) -> Table:
    """Every goal, what was measured, and whether that is enough."""
    table = _table("goals", ("goal", "setting"), ("measured", "target", ""))
    for goal in goals:
        target = f"{'<=' if goal['at_most'] else '>='} {_short(goal['goal'])} {goal['unit']}"
        if goal["stretch"] is not None:
            target += f" (stretch {_short(goal['stretch'])})"
        table.add_row(
            goal["name"],
            goal["setting"],
            _short(goal["measured"]),
            target,
            "met" if goal["met"] else "missed",
        )
    return table


def _short(value: float) -> str:
    if value >= 1e9:
        return f"{value / 1e9:.2f} G"
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def stretch_table(results: Rows) -> Table:
    """How long the writer keeps readers out, at most."""
    table = _table(
        "longest stretch that keeps readers out", ("work",), ("blocks", "us", "worst us")
    )
    for result in results:
        us = result["longest_us"]
        table.add_row(
            result["work"], f"{result['blocks']:,}", f"{us['median']:.0f}", f"{us['max']:.0f}"
        )
    return table


TABLES: Mapping[str, Callable[[Rows], Table]] = {
    "hashing": hashing_table,
    "phases": phase_table,
    "drained": drained_table,
    "memory": memory_table,
    "growth": growth_table,
    "stretches": stretch_table,
    "events": event_table,
}
