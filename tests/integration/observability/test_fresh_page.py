"""The page of a router that has served nothing has a sample of every metric that the dashboard, the
alert rules and the docs name: Prometheus counts no increase up to a counter's first sample."""

import json
import re
from importlib import resources
from pathlib import Path

import yaml
from support.free_port import free_port
from support.observability import promql
from support.observability.exposition import families
from support.observability.metric_tables import OF_PICKERS
from support.observability.seen_fleet import seen_fleet
from support.places import ROOT
from support.polling import until
from support.processes import command, http_json, http_text

FOLDER = resources.files("dynamo_router.server.metrics") / "dashboards"
BOARD = json.loads((FOLDER / "dynamo-router.json").read_text())
RULES = yaml.safe_load((FOLDER / "dynamo-router-alerts.yaml").read_text())["groups"][0]["rules"]
OF_EVENTS = {
    "dynamo_router_forecast_failed_seconds",
    "dynamo_router_shadow_info",
    "dynamo_router_worker_lower_tier_blocks",
}
"""Gauges of what is not there: no prediction has failed, no policy is compared, no blocks are
in other tiers."""
OF_FLEETS = re.compile(r"_index_(lent|borrowed)|_peers?_|_peers$|_front_up$")
"""Of several routers, or processes, together."""
OF_PARTS = re.compile(rf"_event_stream_|_index_(snapshot|restored)|_session|{OF_FLEETS.pattern}")
"""Of these and of parts that a plain `serve` does not have."""
OF_ENGINES = re.compile(
    r"^dynamo_router_(prefill_queue_|request_plane_|transfer_|kv_blocks_checked|kv_corrupt)"
)
"""Of mock engines that hand prompts over, on a page of their own."""


def asked_for() -> set[str]:
    expressions = [rule["expr"] for rule in RULES]
    for panel in BOARD["panels"]:
        expressions += [target["expr"] for target in panel.get("targets", ())]
    return {
        selector.name for each in expressions for selector in promql.read(each).selectors
    } - OF_EVENTS


def named_in_docs() -> set[str]:
    pages = (path.read_text() for path in (ROOT / "docs").glob("*.md"))
    pattern = r"\bdynamo_(?:router|component|frontend)_\w*[a-z]\b"
    return {name for page in pages for name in re.findall(pattern, page)} - OF_EVENTS


def sampled(page: str, *, openmetrics: bool = False) -> dict[str, set[str]]:
    """Labels by the names of samples, and of families but for what a family's kind appends."""
    found: dict[str, set[str]] = {}
    for family in families(page, openmetrics=openmetrics).values():
        for sample in family.samples:
            for name in (sample.name, family.name):
                found.setdefault(name, set()).update(sample.labels)
    return found


async def test_a_fresh_process_has_what_dashboard_and_alerts_ask_for(tmp_path: Path) -> None:
    http, port = free_port(), free_port()
    words = ("--mockers", "2", "--http-port", str(http), "--port", str(port))
    async with command(tmp_path, "serve", *words) as process:
        await process.says("dynamo-router ready")

        async def ready() -> bool:
            shown = await http_json(f"127.0.0.1:{http}", "/workers")
            return [each["state"] for each in shown["workers"]] == ["ready"] * 2

        await until(ready)
        page = sampled(await http_text(f"127.0.0.1:{http}", "/metrics"))
    names = asked_for()
    assert len(names) > 50
    assert {name for name in names - set(page) if not OF_PARTS.search(name)} == set()


async def test_a_fresh_router_with_all_its_parts_has_what_the_docs_name(tmp_path: Path) -> None:
    async with seen_fleet(tmp_path, used=False) as page:
        there = sampled(page, openmetrics=True)
    names = named_in_docs()
    assert len(names) > 120
    missing = {name for name in names - set(there) if not OF_FLEETS.search(name)}
    missing = {name for name in missing if not OF_ENGINES.search(name)}
    assert {name for name in missing if not name.startswith(OF_PICKERS)} == set()
