"""The dashboard and the alert rules ask for metrics and labels that a served fleet really has."""

import itertools
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from support.observability import promql
from support.observability.exposition import families
from support.observability.seen_fleet import seen_fleet

from dynamo_router.indexer.source import SourceState
from dynamo_router.server.metrics.http_answers import STATUSES
from dynamo_router.workers.registry import WorkerState

FOLDER = resources.files("dynamo_router.server.metrics") / "dashboards"
BOARD = json.loads((FOLDER / "dynamo-router.json").read_text())
RULES = yaml.safe_load((FOLDER / "dynamo-router-alerts.yaml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus itself gives to what it scrapes."""
ALLOWED = {
    "state": {*(s.value for s in WorkerState), *(s.value for s in SourceState), "unregistered"},
    "status": {*(code.name.lower() for code in grpc.StatusCode), *map(str, STATUSES)},
    "worker_id": {"unregistered", "other"},
    "limit": {"retry_budget"},
    "reason": {"rate_limit", "slow_reader"},
}
"""What may be asked of a label."""


class Fleet:
    """What a served fleet's page has: types and labels by the names of samples."""

    def __init__(self, page: str) -> None:
        self.types: dict[str, str] = {}
        self.labels: dict[str, set[str]] = {}
        self.families = families(page, openmetrics=True)
        for family in self.families.values():
            for sample in family.samples:
                self.types[sample.name] = family.type
                self.labels.setdefault(sample.name, set()).update(sample.labels)

    def complaints(self, expression: str) -> list[str]:
        """What is wrong with an expression; nothing, one hopes."""
        query, found = promql.read(expression), []
        offered = set(OF_PROMETHEUS)
        for selector in query.selectors:
            name, calls = selector.name, selector.functions
            if name not in self.types:
                found.append(f"{name} does not exist")
                continue
            offered |= self.labels[name]
            for label, value in selector.matchers:
                if label not in self.labels[name] | OF_PROMETHEUS:
                    found.append(f"{name} has no label {label}")
                for each in () if value.startswith("$") else value.split("|"):
                    if not any(map(re.compile(each).fullmatch, ALLOWED.get(label, {each}))):
                        found.append(f"{label} is never {each}")
            rising = self.types[name] in ("counter", "histogram", "summary")
            if rising != (calls[:1] in (("rate",), ("increase",))) or rising != selector.ranged:
                found.append(f"{name} is a {self.types[name]}: rate or no rate?")
            if "histogram_quantile" in calls and not (
                self.types[name] == "histogram" and name.endswith("_bucket")
            ):
                found.append(f"{name} is no histogram")
            if name.endswith("_bucket") and "le" not in query.groupings:
                found.append(f"{name} is summed over its buckets")
        if not query.groupings <= offered:
            found.append(f"nothing has the labels {query.groupings - offered}")
        return found

    def labels_of(self, expression: str) -> set[str]:
        """The labels that a result may have."""
        query = promql.read(expression)
        if query.groupings - {"le"}:
            return query.groupings - {"le"}
        return OF_PROMETHEUS.union(*(self.labels[s.name] for s in query.selectors))


@pytest.fixture
async def fleet(tmp_path: Path) -> Fleet:
    async with seen_fleet(tmp_path) as page:
        return Fleet(page)


async def test_every_expression_asks_for_what_there_is(fleet: Fleet) -> None:
    expressions = [target["expr"] for _, target in TARGETS] + [rule["expr"] for rule in RULES]
    assert len(expressions) > 70
    complaints = {expression: fleet.complaints(expression) for expression in expressions}
    assert {e: said for e, said in complaints.items() if said} == {}


async def test_legends_and_texts_name_labels_of_the_result(fleet: Fleet) -> None:
    for title, target in TARGETS:
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= fleet.labels_of(target["expr"]), title
    for rule in RULES:
        texts = " ".join(rule["annotations"].values())
        named = set(re.findall(r"\$labels\.(\w+)", texts))
        assert named <= fleet.labels_of(rule["expr"]), rule["alert"]


async def test_a_wrong_expression_is_noticed(fleet: Fleet) -> None:
    ttft = "dynamo_component_router_time_to_first_token_seconds"
    for wrong in (
        "dynamo_router_no_such_metric",
        'dynamo_router_workers{colour="red"}',
        'dynamo_router_workers{state="happy"}',
        "rate(dynamo_router_workers[5m])",
        'sum(rate(dynamo_router_http_requests_total{status=~"6.."}[5m]))',
        'sum(rate(dynamo_router_http_requests_total{path="/"}[5m]))',
        "dynamo_router_retries_total",
        "sum by (colour) (dynamo_router_workers)",
        f"histogram_quantile(0.9, rate({ttft}_sum[5m]))",
        f"histogram_quantile(0.9, sum by (job) (rate({ttft}_bucket[5m])))",
    ):
        assert fleet.complaints(wrong), wrong
    for broken in ("sum(", "a}", "a)", 'a{b"c"}', "a ? b", "rate(a)", "rats(a[1m])"):
        with pytest.raises(ValueError):
            promql.read(broken)


def test_variables_ask_for_what_there_is() -> None:
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "instance"]
    for variable in BOARD["templating"]["list"][1:]:
        assert variable["query"]["query"].startswith("label_values(dynamo_router_build_info")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__all", "__rate_interval"}
    assert used == set(names)


def _cells(panel: Any) -> Iterator[tuple[int, int]]:
    box = panel["gridPos"]
    rows = range(box["y"], box["y"] + box["h"])
    return itertools.product(range(box["x"], box["x"] + box["w"]), rows)


def test_the_dashboard_is_laid_out_without_overlaps() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = [cell for panel in BOARD["panels"] for cell in _cells(panel)]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) == 23
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert panel["title"] and references and len(set(references)) == len(references)


def test_each_alert_says_when_how_bad_and_what_it_means() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert re.search(r"[<>]=?|==", rule["expr"]), "it never ends"
