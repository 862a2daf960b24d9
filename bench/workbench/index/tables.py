"""The results of the index benchmark for people: a table per part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from ...results import Column, millions, percent, rows_table

Rows = Sequence[dict[str, Any]]
BLOCK, WORKERS = Column("block", "block_size"), Column("workers", "workers")
ADAPTER = Column("contender", "contender")


def spread_of(figure: Mapping[str, float]) -> str:
    """How far the rounds lie apart, against their median."""
    return f"{(figure['max'] - figure['min']) / figure['median']:.0%}" if figure["median"] else "-"


def _with_spread(rows: Rows, key: str) -> Rows:
    return [{**row, "spread": spread_of(row[key])} for row in rows]


def phase_table(results: Rows) -> Table:
    """Each index's throughput, also as a multiple of Dynamo's, if that ran.

    By CPU the multiple holds on a busy machine too; it leaves out what Dynamo's calls wait.
    """
    setting = ("block_size", "workers", "phase")
    peers = {
        tuple(row[key] for key in setting): row for row in results if row["contender"] == "dynamo"
    }
    rows = []
    for row in _with_spread(results, "blocks_per_s"):
        peer = peers.get(tuple(row[key] for key in setting))
        times = {
            f"times_{key}": row[key]["median"] / peer[key]["median"] if peer else None
            for key in ("blocks_per_s", "blocks_per_cpu_s")
        }
        rows.append({**row, **times})
    columns = (
        *(BLOCK, WORKERS, Column("phase", "phase"), ADAPTER),
        Column("blocks/s", "blocks_per_s", millions),
        Column("spread", "spread"),
        Column("calls/s", "operations_per_s", 0),
        Column("p50 us", "p50_us", 1),
        Column("p99 us", "p99_us", 1),
        Column("x dynamo", "times_blocks_per_s", 2),
        Column("x by CPU", "times_blocks_per_cpu_s", 2),
    )
    title = "phases; like for like with dynamo: events (same bytes in), lists (list in, dict out)"
    return rows_table(rows, columns, title)


def drained_table(results: Rows) -> Table:
    columns = (
        *(BLOCK, WORKERS),
        Column("logical ops/s", "operations_per_s", 0),
        Column("block ops/s", "blocks_per_s", millions),
        Column("spread", "spread"),
        Column("by CPU", "blocks_per_cpu_s", millions),
        Column("of it draining", "drain_share", percent),
        Column("match p50 us", "match_p50_us", 1),
        Column("p99 us", "match_p99_us", 1),
    )
    title = "mixed through EventIndex, until its mailbox is empty"
    return rows_table(_with_spread(results, "blocks_per_s"), columns, title)


def memory_table(results: Rows) -> Table:
    columns = (
        *(BLOCK, WORKERS, ADAPTER),
        Column("entries", "entries", 0),
        Column("B/entry", "bytes_per_entry", 1),
        Column("first tree/s", "first", millions),
        Column("second", "second", millions),
        Column("by CPU", "first_cpu", millions),
        Column("second", "second_cpu", millions),
        Column("faults", "first_faults", 0),
        Column("second", "second_faults", 0),
    )
    title = "memory; blocks/s and page faults of a process's first tree and its second"
    return rows_table(results, columns, title)


def growth_table(results: Rows) -> Table:
    columns = (
        *(ADAPTER, Column("of", "kind"), Column("held by", "held_by")),
        Column("size", "size", 0),
        Column("match p50 us", "match_p50_us", 2),
        Column("p99 us", "match_p99_us", 2),
        Column("workers found", "workers_found", 0),
        Column("store blocks/s", "store_blocks_per_s", millions),
        Column("B/block", "bytes_per_block", 1),
    )
    return rows_table([{**row, "size": row[row["kind"]]} for row in results], columns, "growth")


def event_table(results: Rows) -> Table:
    columns = (
        *(Column("load", "load"), WORKERS),
        Column("stored/s", "stored_per_s", millions),
        Column("spread", "spread"),
        Column("+ evicted", "blocks_per_s", millions),
        Column("messages/s", "messages_per_s", 0),
        Column("events", "events_per_message", 1),
        Column("bytes", "bytes_per_message", 0),
        Column("CPU router", "router_cpu_share", percent),
        Column("engines", "engines_cpu_share", percent),
        Column("lag p50 ms", "lag_p50_ms", 2),
        Column("p99 ms", "lag_p99_ms", 2),
    )
    title = "through NATS until visible; events and bytes of a message, CPU of a core"
    return rows_table(_with_spread(results, "stored_per_s"), columns, title)


def goal_table(goals: Rows) -> Table:
    """Every goal, what was measured, and whether that is enough."""
    rows = []
    for goal in goals:
        target = f"{'<=' if goal['at_most'] else '>='} {_short(goal['goal'])} {goal['unit']}"
        if goal["stretch"] is not None:
            target += f" (stretch {_short(goal['stretch'])})"
        rows.append({**goal, "target": target, "verdict": "met" if goal["met"] else "missed"})
    columns = (
        Column("goal", "name"),
        Column("setting", "setting"),
        Column("measured", "measured", _short),
        Column("target", "target"),
        Column("", "verdict"),
    )
    return rows_table(rows, columns, "goals")


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:.2f}".rstrip("0").rstrip(".")


TABLES: Mapping[str, Callable[[Rows], Table]] = {
    "phases": phase_table,
    "drained": drained_table,
    "memory": memory_table,
    "growth": growth_table,
    "events": event_table,
}
