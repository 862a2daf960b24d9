"""What of a request in flight changes after it was made: few fields, and nothing beside them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_origin

import pytest
from support.places import ROOT

from dynamo_router.server.dispatch.request import Attempt, Hedge, Request

MOST = 13
DISPATCH = ROOT / "server" / "dispatch"
SETTINGS = {"after_s", "least", "limit", "max_attempts", "share"}
"""that the dispatcher changes in its parts when they are read again"""
OF_RECORDS = {"is_logged"}
"""of the record of a request over HTTP"""


def changing(kind: type[Any]) -> set[str]:
    """Fields that are not Final. mypy holds the others to it."""
    return {name for name, of in kind.__annotations__.items() if get_origin(of) is not Final}


def assigned(path: Path) -> Iterator[str]:
    """Attributes of other objects that a module assigns."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr


def called(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


def test_few_fields_change() -> None:
    assert len(changing(Request)) + len(changing(Attempt)) <= MOST


@pytest.mark.parametrize("kind", [Request, Attempt, Hedge])
def test_there_are_no_other_attributes(kind: type[Any]) -> None:
    assert kind.__struct_fields__ == tuple(kind.__annotations__)
    assert "__dict__" not in dir(kind)


def test_only_they_are_assigned_and_all_of_them_are() -> None:
    stores = {name for path in DISPATCH.glob("*.py") for name in assigned(path)}
    state = changing(Request) | changing(Attempt) | changing(Hedge)
    assert stores == state | SETTINGS | OF_RECORDS


def test_none_is_assigned_by_its_name() -> None:
    calls = {name for path in DISPATCH.glob("*.py") for name in called(path)}
    assert not calls & {"setattr", "__setattr__", "delattr", "__delattr__"}


@pytest.mark.parametrize("folder", ["dashboard", "metrics", "prefetch", "services", "tracing"])
def test_who_reads_requests_changes_nothing_of_them(folder: str) -> None:
    for path in (ROOT / "server" / folder).glob("*.py"):
        text = path.read_text()
        if "Request" in text and "from ..dispatch import" in text:
            owners = {
                ast.unparse(node.value)
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
            assert not owners & {"request", "attempt", "request.attempt"}, path
