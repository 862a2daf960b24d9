"""The tables of docs/metrics.md and docs/metrics_process.md, as running servers give them.

`python -m support.observability.metric_tables`, in tests/, writes them; introductions stay.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.epp.picking import picking
from support.observability.exposition import families
from support.observability.seen_fleet import seen_fleet
from support.places import ROOT

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("metrics", "metrics_process"))
OF_PICKERS = "dynamo_router_epp_"
"""Begins the names of metrics that `epp` alone has."""
SECTIONS = {
    "Endpoint pickers": OF_PICKERS,
    "Workers": "_worker_|_ranks_left_out$|_router_workers$|_event_source_state$",
    "KV events and the index": "_(kv_cache_events|events?|index|indexed|predictions)_",
    "The process and its listeners": (
        "^process_|_router_(loop|build|access|secret|tls|log|record|off_loop|open_calls)_"
        "|_open_calls$|_http_connections$"
    ),
    "Requests": "",
}
"""Patterns of names by section; the first that fits counts."""
_SILENT = {
    "dynamo_router_forecast_failed_seconds": "kind, value",
    "dynamo_router_shadow_info": "policy",
}
"""Labels of metrics without a sample in a fleet that has not met what they count."""
_MORE = {
    "dynamo_router_objectives_total": "[operations](overload.md#objectives)",
    "dynamo_router_token_cache_characters_total": "[frontend](long_conversations.md)",
    "dynamo_router_forecast_trusted": "[routing](lab/routing.md#when-the-forecast-fails)",
    "dynamo_router_disagg_failures_total": "[disaggregation](disaggregation.md)",
    "dynamo_router_migrations_total": "[frontend](frontend.md#when-an-engine-dies-under-a-stream)",
    "dynamo_router_sessions": "[sessions](sessions.md#sessions)",
    "dynamo_router_event_source_state": "[the index](kv_index.md#from-an-event-to-the-tree)",
    "dynamo_router_worker_errors_total": "[causes](failures.md#failures)",
    "dynamo_router_event_sources": "[events](events.md)",
}
"""Where the docs have more on a metric."""
_CODE = re.compile(r'--[a-z][\w-]+|\bdynamo_\w+|\w+="\w*"')
_HEAD = "| name | type | labels | meaning |\n|---|---|---|---|\n"
_TABLE = re.compile(rf"^## (.+)\n\n(?:[^#|].*\n+)*{re.escape(_HEAD)}((?:\|.*\n)+)", re.MULTILINE)


def generated(page: str) -> dict[str, str]:
    """The rows of a page in OpenMetrics, in its order, by section."""
    rows: dict[str, str] = {}
    for family in families(page, openmetrics=True).values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        named = ", ".join(labels) or _SILENT.get(name, "-")
        text = _CODE.sub(r"`\g<0>`", family.documentation)
        if name in _MORE:
            text = f"{text.removesuffix('.')} ({_MORE[name]})."
        section = next(title for title, names in SECTIONS.items() if re.search(names, name))
        row = f"| `{name}` | {family.type} | {named} | {text} |\n"
        rows[section] = rows.get(section, "") + row
    return rows


def documented() -> dict[str, str]:
    """The rows that the docs have, by section."""
    return {title: rows for page in PAGES for title, rows in _TABLE.findall(page.read_text())}


def write(tables: Mapping[str, str]) -> None:
    """Put them into the docs; a section that is not there is a KeyError."""
    missing = set(tables)
    for page in PAGES:
        text = page.read_text()
        for title, rows in _TABLE.findall(text):
            text = text.replace(rows, tables[title])
            missing.discard(title)
        page.write_text(text)
    if missing:
        raise KeyError(missing)


async def main() -> None:
    """Write what a fleet and a picker give."""
    with tempfile.TemporaryDirectory() as folder:
        async with seen_fleet(Path(folder)) as page:
            tables = generated(page)
        async with picking(Path(folder)) as served:
            page = await served.metrics("application/openmetrics-text")
    title = next(iter(SECTIONS))
    write({**tables, title: generated(page)[title]})


if __name__ == "__main__":
    asyncio.run(main())
