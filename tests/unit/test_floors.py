"""The house as docs/architecture.md draws it, held on the imports that the files really have."""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from support import house_rules as rules
from support.import_graph import SourceTree, cycles
from support.places import ROOT

FLOORS = {
    "__init__": 12,  # names of the floors below, resolved on first use
    "__main__": 12,
    "cli": 11,
    "planner": 10,
    "bench": 9,
    "frontend": 8,
    "server": 7,
    "router": 6,
    "engines": 6,
    "kv_events": 5,
    "workers": 4,
    "runtime": 3,
    "indexer": 2,
    "slots": 2,
    "transport": 2,
    "process": 1,
    "base": 0,
}
BESIDE_THE_DOOR = {
    "frontend.epp.proto": "a generated protobuf module is the door of its own protocol",
    "router.proto": "a generated protobuf module is the door of its own protocol",
    "workers.token_services.proto": "a generated protobuf module is the door of its own protocol",
}
HOUSES = {
    "runtime.event_planes": "planes over JetStream and ZMQ stand on stores, as the others do not",
}
CIRCLES = {
    "indexer.tree._inspect <-> indexer.tree._radix <-> indexer.tree.dump": (
        "RadixTree.dump_tree_as_events, a name of Dynamo's, calls the Python that lists a tree"
    ),
}
OPEN_DOORS = {
    "indexer": "programs that embed an index take names there",
    "router": "programs that embed a router, and policies, take names there",
    "runtime": "programs that use Dynamo's runtime take names there",
    "server.tracing": "its function returns what it imports",
    "transport.http1": "its own list of names",
}
"""Rooms whose doors have names that nothing here takes."""
LONG_FILES: dict[str, str] = {}
"""Files above the alarm of 600 lines, each with its reason: a file ends where its noun ends."""
# The way of a request needs no grpc. Here it carries calls itself, or gives what only it has.
KNOW_GRPC = {
    "runtime.kv_stores.etcd_connection": "etcd's client is made on it",
    "runtime.kv_stores.etcd_store": "etcd's client is made on it",
    "runtime.kv_stores.etcd_watch": "etcd's client is made on it",
    "server.metrics.process": "its version is told",
}
FLOORS_OF_REQUESTS = tuple(floor for floor in FLOORS if floor != "bench")

Rule = Callable[[SourceTree], list[str]]
RULES: dict[str, Rule] = {
    "imports run downwards": lambda tree: rules.upward_imports(tree, FLOORS),
    "index and slots need no process around them": lambda tree: rules.imports_beyond(
        tree, ("indexer", "slots"), "process", {}
    ),
    "arrows between rooms make no circle": lambda tree: [
        circle for circle in rules.circles(tree) if circle not in CIRCLES
    ],
    "a room is entered by its door": lambda tree: rules.entries_beside_the_door(
        tree, BESIDE_THE_DOOR, HOUSES
    ),
    "private names stay in their room": rules.private_names_taken,
    "only the edges know grpc": lambda tree: rules.imports_of_library(
        tree, "grpc", FLOORS_OF_REQUESTS, KNOW_GRPC
    ),
    "a folder has at most 20 modules": lambda tree: rules.crowded_folders(tree.files, 20),
    "a file of more than 600 lines has a reason": lambda tree: [
        text for text in rules.long_files(tree, 600) if text.split()[0] not in LONG_FILES
    ],
}


@pytest.fixture(scope="module")
def house() -> SourceTree:
    return SourceTree(ROOT, tuple(folder for folder in FLOORS if (ROOT / folder).is_dir()))


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(house: SourceTree, rule: str) -> None:
    assert RULES[rule](house) == []


def settle(found: list[str], to_mend: list[str]) -> None:
    """Fail with what is new, and with what was mended and still stands on the list."""
    assert sorted(set(found) - set(to_mend)) == [], "the house breaks its rule anew"
    assert sorted(set(to_mend) - set(found)) == [], "mended: take it from the list"


def test_every_folder_of_the_package_has_a_floor(house: SourceTree) -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= set(FLOORS)
    assert {module.split(".")[0] for module in house.modules} <= set(FLOORS)
    assert len(house.imports) > 1000  # they were really read


def test_no_exception_outlives_its_reason(house: SourceTree) -> None:
    for allowed in (BESIDE_THE_DOOR, HOUSES, KNOW_GRPC):
        assert rules.needless(house, allowed) == []
    every = rules.imports_of_library(house, "grpc", FLOORS, {})
    settle([text for text in every if not text.startswith("bench.")], _naming(KNOW_GRPC))
    settle(rules.circles(house), list(CIRCLES))


def test_every_name_at_a_door_has_a_user(house: SourceTree) -> None:
    assert rules.unused_exports(house, ROOT / "tests", OPEN_DOORS) == []


def test_tests_keep_the_rules_that_concern_them() -> None:
    tests = SourceTree(ROOT / "tests", tuple(p.name for p in (ROOT / "tests").iterdir()))
    assert rules.tests_that_import_tests(ROOT / "tests") == []
    assert rules.crowded_folders(tests.files, 20) == []
    assert rules.long_files(tests, 600) == []


def _naming(modules: Collection[str]) -> list[str]:
    return [f"{module} imports grpc" for module in modules]


# The rules on small trees: each of them can fail.

Files = dict[str, str]


def tree_of(root: Path, files: Files) -> SourceTree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(root, ("bench", "router", "indexer", "slots", "process", "base"))


HOUSE = {
    "__init__.py": "",
    "bench/__init__.py": "",
    "router/__init__.py": "",
    "router/policy/__init__.py": "from .cost import Cost\n",
    "router/policy/cost.py": "from ...base.clock import now\n",
    "router/kv_router.py": "from .policy import Cost\nfrom ..indexer import tree\n",
    "indexer/__init__.py": "",
    "indexer/tree/__init__.py": "",
    "indexer/tree/_radix.pyx": "from ...base.native._table cimport (\n    Table,  # open\n)\n",
    "indexer/tree/_radix.pxd": "from libc.stdint cimport uint64_t\n",
    "slots/__init__.py": "",
    "base/__init__.py": "",
    "process/__init__.py": "",
    "base/clock.py": "import time\n",
    "base/native/__init__.py": "",
    "base/native/_table.pxd": "",
}


def check(rule: str, tree: SourceTree) -> list[str]:
    return RULES[rule](tree)


def test_a_sound_house_breaks_no_rule(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, HOUSE)
    assert [str(each) for each in tree.imports] == [
        "indexer/tree/_radix.pyx imports base.native._table: Table",
        "router/kv_router.py imports router.policy.__init__: Cost",
        "router/kv_router.py imports indexer.tree.__init__",
        "router/policy/__init__.py imports router.policy.cost: Cost",
        "router/policy/cost.py imports base.clock: now",
    ]
    assert all(not check(rule, tree) for rule in list(RULES)[:-1])


BROKEN: list[tuple[str, Files, list[str]]] = [
    (
        "imports run downwards",
        {"base/clock.py": "def f():\n    from dynamo_router.router.policy import Cost\n"},
        ["base/clock.py imports router.policy.__init__: Cost"],
    ),
    (
        "imports run downwards",
        {"slots/table.py": "from .. import indexer\n"},
        ["slots/table.py imports indexer.__init__"],
    ),
    (
        "imports run downwards",
        {"slots/_book.pyx": "from ..indexer.tree._radix cimport find, \\\n    store\n"},
        [
            "slots/_book.pyx imports indexer.tree._radix: find",
            "slots/_book.pyx imports indexer.tree._radix: store",
        ],
    ),
    (
        "imports run downwards",
        {"indexer/tree/_radix.pxd": "cimport dynamo_router.slots._book as book\n",
         "slots/_book.pxd": ""},
        ["indexer/tree/_radix.pxd imports slots._book"],
    ),
    (
        "index and slots need no process around them",
        {
            "process/logs.py": "",
            "indexer/feed.py": "import dynamo_router.process.logs\n",
        },
        ["indexer/feed.py imports process.logs"],
    ),
    (
        "arrows between rooms make no circle",
        {"router/policy/cost.py": "from ..kv_router import KvRouter\n"},
        ["router.kv_router <-> router.policy"],
    ),
    (
        "arrows between rooms make no circle",
        {
            "router/a.py": "from .b import x\n",
            "router/b.py": "from .c import x\n",
            "router/c.pyi": "if TYPE_CHECKING:\n    from . import a\n",
        },
        ["router.a <-> router.b <-> router.c"],
    ),
    (
        "a room is entered by its door",
        {"router/kv_router.py": "from .policy import cost\nfrom .policy.cost import Cost\n"},
        ["router/kv_router.py imports router.policy.cost"],
    ),
    (
        "private names stay in their room",
        {"router/kv_router.py": "from .policy import Cost, _secret, __all__\n"},
        ["router/kv_router.py imports router.policy.__init__: _secret"],
    ),
    (
        "only the edges know grpc",
        {
            "router/a.py": "def f():\n    from grpc import aio\n",
            "router/b.py": "import os, grpc.aio\n",
            "router/c.py": "from . import grpc\nimport grpc_health\n",
            "bench/d.py": "import grpc\n",
        },
        ["router.a imports grpc", "router.b imports grpc"],
    ),
    (
        "a folder has at most 20 modules",
        {f"slots/_m{i}{end}": "" for i in range(21) for end in (".pyx", ".pxd", ".pyi")},
        ["slots/ has more than 20 modules"],
    ),
    (
        "a file of more than 600 lines has a reason",
        {"slots/table.py": "x = 1\n" * 601, "slots/table_pb2.py": "x = 1\n" * 601},
        ["slots/table.py has more than 600 lines"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "change", "expected"), BROKEN)
def test_a_broken_rule_is_named(
    tmp_path: Path, rule: str, change: Files, expected: list[str]
) -> None:
    assert check(rule, tree_of(tmp_path, HOUSE | change)) == expected


def test_twenty_modules_are_not_too_many(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {f"slots/_m{i}.pyx": "x = 1\n" * 600 for i in range(20)})
    assert rules.crowded_folders(tree.files, 20) == []
    assert rules.long_files(tree, 600) == []


def test_native_code_has_no_door(tmp_path: Path) -> None:
    change = {
        "router/_x.pyx": "from ..indexer.tree._radix cimport find\n",
        "router/_x.pyi": "from ..indexer.tree._radix import Tree\n",
        "router/_y.pyi": "from ..indexer.tree._radix import Tree\n",
        "router/_z.pyx": "from ..indexer.tree._radix import Tree\n",
    }
    assert check("a room is entered by its door", tree_of(tmp_path, HOUSE | change)) == [
        "router/_y.pyi imports indexer.tree._radix",
        "router/_z.pyx imports indexer.tree._radix",
    ]


def test_a_test_that_imports_a_test_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("from support.polling import until\n")
    (tmp_path / "test_b.py").write_text("import unit.test_a\nfrom unit import test_a\n")
    assert rules.tests_that_import_tests(tmp_path) == [
        "test_b.py imports unit",
        "test_b.py imports unit.test_a",
    ]


def test_circles_are_found_whole() -> None:
    assert cycles([("a", "b"), ("b", "c")]) == []
    assert cycles([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("b", "c")]) == [
        ["a", "b"],
        ["c", "d"],
    ]
