"""Pages of docs/ are for readers: short, narrow, and their commands are commands."""

import ast
import builtins
import importlib.util
import re
import shlex
import symtable
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from support.places import ROOT

from dynamo_router.cli import COMMANDS, ENGINES, build_command
from dynamo_router.server.access.roles import RULES

DOCS = ROOT / "docs"
MAX_LINES, MAX_COLUMNS, README_LINES = 150, 120, 120
PAGES = [
    page for page in sorted(DOCS.rglob("*.md")) if "lab" not in page.relative_to(DOCS).parts
] + [ROOT / "README.md"]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands_of(text: str) -> list[list[str]]:
    """The words of each `dynamo-router ...` of the page's console blocks, after the program."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            words = shlex.split(line)
            if "dynamo-router" in words:
                found.append(words[words.index("dynamo-router") + 1 :])
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_is_short(page: Path) -> None:
    limit = README_LINES if page.name == "README.md" else MAX_LINES
    assert len(page.read_text().splitlines()) <= limit


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_prose_is_narrow(page: Path) -> None:
    """Tables are as wide as their cells, links and commands as what they name."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", " ─"))]
    assert [line for line in lines if len(re.sub(r"\]\([^)]*\)", "]", line)) > MAX_COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_snippet_has_what_it_names(page: Path) -> None:
    """Who copies it need not look for an import."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(block, page.name, "exec", flags | ast.PyCF_ONLY_AST)
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        table = [symtable.symtable(_indented(block), page.name, "exec")]
        bound = set(dir(builtins))
        while table:
            each = table.pop()
            table += each.get_children()
            bound |= {name.get_name() for name in each.get_symbols() if name.is_local()}
        assert read <= bound


def _indented(block: str) -> str:
    """Within a function, where `await` may be."""
    return "async def snippet():\n" + textwrap.indent(block, "    ")


@pytest.mark.parametrize("page", sorted((DOCS / "quickstart").glob("*.md")), ids=page_id)
def test_the_commands_of_a_quickstart_are_understood(page: Path) -> None:
    commands = commands_of(page.read_text())
    assert commands
    for name, *words in commands:
        entry = ENGINES[name := words.pop(0)] if name == "worker" else COMMANDS[name]
        built = build_command(name, entry)
        with click.Context(built, info_name=name) as context:
            built.parse_args(context, list(words))


def test_every_page_is_on_the_site() -> None:
    class Loader(yaml.SafeLoader):
        """Passes by what MkDocs alone knows."""

    named = set(
        re.findall(r"[\w/-]+\.md", str(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)))
    )
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert there <= named
    assert {name for name in named - there if not name.startswith("reference/")} == set()


@pytest.fixture
def reference() -> Any:
    """The hook that makes the reference pages; MkDocs comes with the extra `docs`."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_route_field_and_setting(reference: Any) -> None:
    pages = dict(reference.pages())
    http = pages["reference/http.md"]
    for call in RULES:
        method, _, path = call.partition(" ")
        if path:
            assert f"| {method} | `{path}` |" in http, call
    for path, kind in reference.REQUESTS.items():
        assert f"POST {path}" in RULES
        section = http.split(f"## Fields of `{path}`")[1].split("\n## ")[0]
        assert [name for name in kind.__struct_encode_fields__ if f"`{name}`" not in section] == []
    assert "| 429 Too Many Requests | `RESOURCE_EXHAUSTED` | `rate_limit_error` |" in http
    assert "rpc SelectWorker" in pages["reference/grpc.md"]
    assert "`--worker`" in pages["reference/settings/serve.md"]
