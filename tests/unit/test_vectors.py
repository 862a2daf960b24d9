"""The recorded vectors are the project's own: each is described and tested."""

import ast
from pathlib import Path

from support.places import ROOT, VECTORS

FILES = sorted(path.name for path in VECTORS.iterdir() if path.name != "README.md")


def readers() -> dict[str, set[str]]:
    """The test files that read vectors, and the names and strings in each."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "VECTORS" not in text:
            continue  # to read them all takes seconds
        nodes = list(ast.walk(ast.parse(text)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        if "VECTORS" in names and path != Path(__file__):
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
            found[path.name] = names | texts
    return found


def test_each_file_is_described_and_read() -> None:
    described = (VECTORS / "README.md").read_text()
    read = set().union(*readers().values())
    assert len(FILES) >= 4
    for name in FILES:
        assert f"`{name}`" in described
        assert name in read, f"no test reads {name}"


def test_no_test_of_a_vector_can_be_skipped() -> None:
    assert len(readers()) >= 4
    for test, names in readers().items():
        assert not names & {"skip", "skipif", "importorskip", "xfail"}, test
