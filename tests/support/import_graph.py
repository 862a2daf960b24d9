"""The modules of a source tree and what each of them imports, read without running anything.

A module is a name like `router.policy.cost`: the files that share a stem (`_cost.pyx`, `_cost.pxd`,
`_cost.pyi`) are one. A folder with an `__init__` is a package. Python is read through `ast`
(imports inside functions and under TYPE_CHECKING count), Cython by its import statements.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGE = "dynamo_router"
DOOR = "__init__"
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")
GENERATED = re.compile(r"_pb2(_grpc)?$")
CYTHON_COMMENT = re.compile(r"(?m)#.*$")
CYTHON_FROM = re.compile(
    r"(?m)^[ \t]*from[ \t]+(\.*[\w.]*)[ \t]+(c?import)[ \t]+(\([^)]*\)|[^\n(]*)"
)
CYTHON_IMPORT = re.compile(r"(?m)^[ \t]*(c?import)[ \t]+([\w., \t]+)$")


@dataclass(frozen=True)
class Import:
    """One name that a file takes from a module; `name` is empty if it takes the module itself."""

    path: str
    source: str
    target: str
    name: str = ""
    native: bool = False  # a cimport

    def __str__(self) -> str:
        return f"{self.path} imports {self.target}" + (f": {self.name}" if self.name else "")


@dataclass(frozen=True)
class SourceTree:
    """The source files below `folders` of `root`, by path relative to it."""

    root: Path
    folders: tuple[str, ...]

    @cached_property
    def files(self) -> dict[str, Path]:
        found = [path for path in self.root.iterdir() if path.suffix in SUFFIXES]
        for folder in self.folders:
            found += [p for p in (self.root / folder).rglob("*") if p.suffix in SUFFIXES]
        named = ((path.relative_to(self.root).as_posix(), path) for path in sorted(found))
        return {name: path for name, path in named if name != "setup.py"}

    @cached_property
    def packages(self) -> frozenset[str]:
        """Folders with a door; the root is the empty name."""
        doors = (name for name in self.files if Path(name).stem == DOOR)
        return frozenset(module_name(name).rpartition(".")[0] for name in doors) | {""}

    @cached_property
    def modules(self) -> frozenset[str]:
        return frozenset(map(module_name, self.files))

    @cached_property
    def imports(self) -> list[Import]:
        """What the tree's files take from one another."""
        found = []
        for path, file in self.files.items():
            source = module_name(path)
            home = source.rpartition(".")[0]
            statements: Callable[[str], Iterable[Statement]] = (
                cython_imports if file.suffix in (".pyx", ".pxd") else python_imports
            )
            for dots, module, names, native in statements(file.read_text()):
                base = absolute(home, dots, module)
                for name in names or [""]:
                    for target, rest in self._resolve(base, name):
                        found.append(Import(path, source, target, rest, native))
        return found

    def _resolve(self, base: str | None, name: str) -> list[tuple[str, str]]:
        """The module that `from base import name` reads and what it takes of it; none: not ours."""
        if base is None:
            return []
        inner = f"{base}.{name}".lstrip(".")
        if name and inner in self.modules:
            return [(inner, "")]
        if name and inner in self.packages:
            return [(f"{inner}.{DOOR}", "")]
        if base in self.packages:
            return [(f"{base}.{DOOR}".lstrip("."), name)]
        return [(base, name)] if base in self.modules else []

    @cached_property
    def kernels(self) -> frozenset[str]:
        return frozenset(module_name(path) for path in self.files if path.endswith(".pyx"))

    def of_stub(self, each: Import) -> bool:
        """Whether a kernel's stub imports it, which nothing does at run time."""
        return each.path.endswith(".pyi") and each.source in self.kernels

    def children(self, package: str) -> dict[str, str]:
        """Each module below a package, and the package's direct child that it is or lies in."""
        prefix = f"{package}." if package else ""
        inside = (module for module in self.modules if module.startswith(prefix))
        return {module: prefix + module[len(prefix) :].split(".")[0] for module in inside}


def module_name(path: str) -> str:
    return path[: path.rindex(".")].replace("/", ".")


def absolute(home: str, dots: int, module: str) -> str | None:
    """A module's name below the tree's root, or None for other people's."""
    if dots == 0:
        top, _, rest = module.partition(".")
        return rest if top == PACKAGE else None
    parents = home.split(".") if home else []
    parents = parents[: len(parents) - dots + 1]
    return ".".join([*parents, *([module] if module else [])])


Statement = tuple[int, str, list[str], bool]  # dots, module, names, whether it is a cimport


@cache  # several rules read the same files
def python_imports(text: str) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            found.append((node.level, node.module or "", names, False))
        elif isinstance(node, ast.Import):
            found += [(0, alias.name, [], False) for alias in node.names]
    return tuple(found)


def cython_imports(text: str) -> Iterator[Statement]:
    text = CYTHON_COMMENT.sub("", text).replace("\\\n", " ")
    for module, verb, names in CYTHON_FROM.findall(text):
        taken = [part.split()[0] for part in re.split(r"[,()]", names) if part.split()]
        dots = len(module) - len(module.lstrip("."))
        yield dots, module[dots:], taken, verb == "cimport"
    for verb, modules in CYTHON_IMPORT.findall(text):
        for module in modules.split(","):
            if module.split():
                yield 0, module.split()[0], [], verb == "cimport"


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The groups of nodes that reach one another (strongly connected, more than one), sorted."""
    ahead: dict[str, set[str]] = defaultdict(set)
    for start, end in edges:
        ahead[start].add(end)

    def reach(node: str) -> set[str]:
        seen: set[str] = set()
        waiting = [node]
        while waiting:
            fresh = ahead.get(waiting.pop(), set()) - seen
            seen |= fresh
            waiting += fresh
        return seen

    reached = {node: reach(node) for node in list(ahead)}
    groups = {
        frozenset(other for other in reached[node] if node in reached.get(other, ()))
        for node in reached
        if node in reached[node]
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)
