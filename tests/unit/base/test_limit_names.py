"""Metrics have every limit from the start: each name that code counts a hit by is in the list."""

import ast
from collections.abc import Iterator

from support.places import ROOT

from dynamo_router.base.limit_hits import LIMITS
from dynamo_router.server.dispatch.request import TakenBack
from dynamo_router.transport.http2.flood_guard import limit_of

FOLDERS = "base process transport runtime kv_events router workers server frontend".split()
COUNTING = {"hit", "on_limit", "_break", "SharedBound", "tell"}


def counted() -> Iterator[str]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    words = [each for arg in node.args for each in ast.walk(arg)]
                    for word in words if name in COUNTING else ():
                        if isinstance(word, ast.Constant) and isinstance(word.value, str):
                            yield word.value
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "due":
                    if isinstance(node.value, ast.Constant):
                        yield str(node.value.value)


def test_every_limit_that_is_counted_is_listed() -> None:
    names = {word for word in counted() if word and word.isidentifier()} - {
        "bodies",
        "TLS",
        "_per_caller",
    }
    names |= {why.limit for why in TakenBack if why.limit} | {limit_of(11), limit_of(0)}
    names |= {"max_id_bytes", "max_prompt_tokens", "decoded_bytes", "max_unknown_workers"}
    assert len(names) > 25
    assert names <= set(LIMITS), names - set(LIMITS)
    shared = {each.removesuffix("_per_caller") for each in LIMITS if each.endswith("_per_caller")}
    assert set(LIMITS) - {f"{each}_per_caller" for each in shared} == names
