"""Rows of the docs' tables of metrics, and the like of a page of metrics."""

import re

from support.observability.exposition import families
from support.places import ROOT

PAGES = "".join(
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("metrics", "metrics_process")
)
OF_PICKERS = "dynamo_router_epp_"
"""Begins the names of metrics that `epp` alone has."""
_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([\w, -]+) \| (.+) \|")
_LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)|`")
"""What a page has beside the HELP text."""
_SILENT = {"dynamo_router_forecast_failed_seconds": "kind, value"}
"""Labels of metrics without a sample in a fleet that has not met what they count."""

Rows = dict[str, tuple[str, str, str]]
"""(type, labels, HELP) by a metric's name."""


def documented(*, of_pickers: bool = False) -> Rows:
    """What the docs have, of all that is a router's or of what only a picker has."""
    rows = [_ROW.fullmatch(line) for line in PAGES.splitlines()]
    found = [(row[1], (row[2], row[3], _LINK.sub("", row[4]))) for row in rows if row is not None]
    assert len(dict(found)) == len(found), "a metric is there twice"
    return {name: row for name, row in found if name.startswith(OF_PICKERS) is of_pickers}


def shown(page: str) -> Rows:
    """What a page in OpenMetrics has."""
    rows: Rows = {}
    for family in families(page, openmetrics=True).values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        text = _LINK.sub("", family.documentation)
        rows[name] = family.type, ", ".join(labels) or _SILENT.get(name, "-"), text
    return rows
