"""The rules of floors and rooms, each as a function from a source tree to what breaks it.

A floor is a folder at the top of the checkout; a room is a package inside one. Violations are
sentences without line numbers, so that a list of them changes only when the house does.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from support.import_graph import (
    DOOR,
    GENERATED,
    Import,
    SourceTree,
    cycles,
    module_name,
    python_imports,
)

Reasons = Mapping[str, str]  # what is allowed, and why


def upward_imports(tree: SourceTree, floors: Mapping[str, int]) -> list[str]:
    """Imports between top-level folders that do not run from a higher floor to a lower one."""
    top = max(floors.values()) + 1
    found = []
    for each in tree.imports:
        source, target = top_of(each.source), top_of(each.target)
        if source != target and floors.get(target, top) >= floors.get(source, top):
            found.append(str(each))
    return sorted(set(found))


def top_of(module: str) -> str:
    return module.partition(".")[0]


def imports_beyond(
    tree: SourceTree, folders: Collection[str], below: str, allowed: Reasons
) -> list[str]:
    """What `folders` import of the folder `below` besides the modules (or rooms) allowed."""
    return sorted(
        str(each)
        for each in tree.imports
        if top_of(each.source) in folders
        and top_of(each.target) == below
        and not any(within(each.target, name) for name in allowed)
    )


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def circles(tree: SourceTree) -> list[str]:
    """Circles among the direct children of any one package, a room counting as one node.

    The stub of a kernel may name types of the Python face that imports the kernel.
    """
    found = []
    for package in sorted(tree.packages):
        child = tree.children(package)
        arrows = {
            (child[each.source], child[each.target])
            for each in tree.imports
            if each.source in child and each.target in child and not tree.of_stub(each)
        }
        groups = cycles((start, end) for start, end in arrows if start != end)
        found += [" <-> ".join(group) for group in groups]
    return found


def rooms_of(tree: SourceTree) -> list[str]:
    return [package for package in sorted(tree.packages) if "." in package]


def entries_beside_the_door(
    tree: SourceTree, allowed: Reasons, houses: Collection[str] = ()
) -> list[str]:
    """Python imports of a module inside a room from outside of it. `houses` are rooms whose inner
    rooms are entered by doors of their own.

    Native code has no door: cimports, and the stubs of kernels, which name what the kernels cimport
    and derive from, go to the module that declares.
    """
    found = {
        f"{each.path} imports {each.target}"
        for each in tree.imports
        for room in rooms_of(tree)
        if within(each.target, room)
        and each.target != f"{room}.{DOOR}"
        and not (room in houses and each.target.endswith(f".{DOOR}"))
        and not within(each.source, room)
        and not each.native
        and not tree.of_stub(each)
        and not any(within(each.target, name) for name in allowed)
    }
    return sorted(found)


def private_names_taken(tree: SourceTree) -> list[str]:
    """Underscore names imported by a module of another room."""
    return sorted({str(each) for each in tree.imports if is_private(each.name) and crosses(each)})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def crosses(each: Import) -> bool:
    return each.source.rpartition(".")[0] != each.target.rpartition(".")[0]


def crowded_folders(paths: Iterable[str], limit: int) -> list[str]:
    """Folders with more modules of their own than that, the door and generated code not counted."""
    modules: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        stem = Path(path).stem
        if stem != DOOR and not GENERATED.search(stem):
            modules[Path(path).parent.as_posix()].add(stem)
    crowded = {folder: len(stems) for folder, stems in modules.items() if len(stems) > limit}
    return sorted(f"{folder}/ has more than {limit} modules" for folder in crowded)


def long_files(tree: SourceTree, limit: int) -> list[str]:
    sizes = line_counts(tree)
    return [f"{path} has more than {limit} lines" for path, size in sizes.items() if size > limit]


def line_counts(tree: SourceTree) -> dict[str, int]:
    """Lines of each file that somebody wrote."""
    written = {p: f for p, f in tree.files.items() if not GENERATED.search(Path(p).stem)}
    return {path: len(file.read_text().splitlines()) for path, file in written.items()}


def tests_that_import_tests(tests: Path) -> list[str]:
    return sorted(
        f"{path.relative_to(tests).as_posix()} imports {module or name}"
        for path in tests.rglob("*.py")
        for _, module, names, _ in python_imports(path.read_text())
        for name in names or [""]
        if any(part.startswith("test_") for part in [*module.split("."), name])
    )


def imports_of_library(
    tree: SourceTree, library: str, floors: Collection[str], allowed: Reasons
) -> list[str]:
    """Modules of these floors that take something of a library which only some may know."""
    found = set()
    for path, file in tree.files.items():
        module = module_name(path)
        if top_of(module) in floors and module not in allowed and file.suffix == ".py":
            for dots, base, names, _ in python_imports(file.read_text()):
                taken = [base] if base else names
                if not dots and any(top_of(name) == library for name in taken):
                    found.add(f"{module} imports {library}")
    return sorted(found)


def needless(tree: SourceTree, allowed: Reasons) -> list[str]:
    """Modules on a list of exceptions that the tree no longer has."""
    known = tree.modules | tree.packages
    return sorted(set(allowed) - known)


def unused_exports(tree: SourceTree, tests: Path, pinned: Reasons) -> list[str]:
    """Names that a room's door imports for others, and neither a file nor a test takes there. The
    doors of `pinned` rooms, and of rooms inside them, are not looked at."""
    taken = {(each.target, each.name) for each in tree.imports}
    text = "".join(path.read_text() for path in tests.rglob("*.py"))
    found = []
    for each in tree.imports:
        home, _, stem = each.source.rpartition(".")
        if stem != DOOR or not home or not each.name or not within(each.target, home):
            continue
        if (each.source, each.name) in taken or any(within(home, room) for room in pinned):
            continue
        if not re.search(rf"\b{each.name}\b", text):
            found.append(f"{each.source}: {each.name}")
    return found
