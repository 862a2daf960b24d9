"""What is decided in one place: who asks for it is found in the code, with what is called there."""

import ast
from collections import defaultdict
from functools import cache

import pytest
from support.places import ROOT

SERVING = ("server", "frontend", "bench/simulation")
SHARES = {
    "virtual": {"router/admission/turns.py"},
    "has_more": {"router/admission/turns.py", "router/admission/limits.py"},
    "most_waiting": {"router/admission/queue.py"},
    "below_share": {"router/admission/limits.py"},
}
"""The answers of TenantShares that have an effect."""


@cache
def callers(*folders: str) -> dict[str, dict[str, set[str]]]:
    """By method: by the name of what it is called on, the files."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    on = ast.unparse(node.func.value).rpartition(".")[2]
                    found[node.func.attr][on].add(path.relative_to(ROOT).as_posix())
    return found


def test_all_that_serve_decide_by_a_placement() -> None:
    called = callers(*SERVING)
    assert set(called["decide"]) == {"_decider"} and len(called["decide"]["_decider"]) == 1
    assert set(called["place"]) == {"router", "_router"}
    assert "server/services/router_service.py" in called["place"]["_router"]


@pytest.mark.parametrize("answer", SHARES)
def test_an_answer_about_shares_is_asked_for_in_one_place(answer: str) -> None:
    asked = callers("router", "server", "bench/simulation")[answer]
    files = set().union(*(files for on, files in asked.items() if on != "_holdings"))
    assert files - {"router/admission/tenants.py"} == SHARES[answer]


def test_outliers_are_judged_and_published_in_one_place() -> None:
    called = callers("workers", "server")
    judged = {
        name: files
        for name, by in called.items()
        for on, files in by.items()
        if on in ("outliers", "_outliers") and name not in ("standing", "reason")
    }
    assert set().union(*judged.values()) == {"workers/request_reports.py"}
    assert called["standing"]["outliers"] == {"workers/health.py"}
