"""setup.py: builds the kernels.

The checkout is installed as the package dynamo_router. Cython and the type
checkers look a name up by its path, so build/tree shows them the checkout under
that name: one link per folder and nothing else.
"""

import re
from functools import cache
from os import cpu_count, environ
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
FOLDERS = [
    "base",
    "bench",
    "engines",
    "frontend",
    "indexer",
    "kv_events",
    "planner",
    "process",
    "router",
    "runtime",
    "server",
    "slots",
    "transport",
    "workers",
]
LINKED = ["__init__.py", "__main__.py", "cli.py", "py.typed", *FOLDERS]
# A folder is a package where it has a door.
PACKAGES = ["dynamo_router"] + sorted(
    "dynamo_router." + str(door.parent.relative_to(HERE)).replace("/", ".")
    for folder in FOLDERS
    for door in (HERE / folder).rglob("__init__.py")
)
# Every _name.pyx in a folder of the house is a kernel.
KERNELS = sorted(
    str(path.relative_to(HERE).with_suffix("")).replace("/", ".")
    for folder in FOLDERS
    for path in (HERE / folder).rglob("_*.pyx")
)
# What typed memoryviews need, compiled once instead of into each kernel that has one.
SHARED = "base.native._memoryview"
TRACE = environ.get("DYNAMO_ROUTER_TRACE") == "1"
DEBUG = environ.get("DYNAMO_ROUTER_DEBUG") == "1"
SANITIZE = environ.get("DYNAMO_ROUTER_SANITIZE") == "1"
# A folder that keeps generated C, for several builds of the same sources.
GENERATED = environ.get("DYNAMO_ROUTER_GENERATED") or False
LOOPING = ("bench", "engines", "indexer", "planner", "slots")
"""Floors whose kernels go over many blocks, events or engines in one call."""
OWN_NAMES = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
"""No kernel is linked against another one: its calls within itself are direct."""
CIMPORT = re.compile(r"^from\s+(\.[\w.]+)\s+cimport", re.MULTILINE)


def link_tree() -> str:
    """Lay the checkout out as build/tree/dynamo_router; return build/tree.

    Relative, so that generated C is the same wherever the checkout is.
    """
    tree = Path("build", "tree")
    package = HERE / tree / "dynamo_router"
    package.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link = package / name
        if not link.is_symlink():
            link.symlink_to(HERE / name)
    return str(tree)


@cache
def declarations(source: Path) -> frozenset[Path]:
    """The .pxd files whose text a kernel or another declaration takes in, by relative cimports."""
    found: set[Path] = set()
    waiting = [source, source.with_suffix(".pxd")]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for name in CIMPORT.findall(path.read_text()):
            dots = len(name) - len(name.lstrip("."))
            folder = path.parents[dots - 1]
            waiting.append(folder.joinpath(*name[dots:].split(".")).with_suffix(".pxd"))
    return frozenset(found)


def drop_stale_sources() -> None:
    """Remove generated C older than its declarations: cythonize misses relative cimports."""
    for name in KERNELS:
        kernel = HERE / name.replace(".", "/")
        generated = kernel.with_suffix(".c")
        newest = max(path.stat().st_mtime for path in declarations(kernel.with_suffix(".pyx")))
        if generated.exists() and generated.stat().st_mtime < newest:
            generated.unlink()


def compile_args(name: str) -> list[str]:
    if SANITIZE:
        return ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    if DEBUG:
        return ["-O0", "-g", "-UNDEBUG"]
    # What a request passes once is cold whenever it comes, and is paid for by its size.
    level = "-O3" if name.partition(".")[0] in LOOPING else "-O2"
    # No fused multiply-add: a simulation gives the same numbers on every machine.
    return [level, "-g0", "-ffp-contract=off", *OWN_NAMES]


def extension(name: str, suffix: str) -> Extension:
    return Extension(
        f"dynamo_router.{name}",
        [name.replace(".", "/") + suffix],
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] if TRACE else [],
        extra_compile_args=compile_args(name),
        extra_link_args=["-fsanitize=address,undefined"] if SANITIZE else [],
    )


class BuildPy(build_py):
    """The checkout is the package's folder, but setup.py is no part of it."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        top = package == "dynamo_router"
        return [module for module in found if not (top and module[1] == "setup")]


drop_stale_sources()
setup(
    packages=PACKAGES,
    cmdclass={"build_py": BuildPy},
    options={"build_ext": {"parallel": cpu_count() or 1}},
    ext_modules=cythonize(
        [extension(SHARED, ".c"), *(extension(name, ".pyx") for name in KERNELS)],
        nthreads=cpu_count() or 1,
        shared_utility_qualified_name=f"dynamo_router.{SHARED}",
        include_path=[link_tree()],
        cache=GENERATED,
        force=TRACE,  # cythonize does not see a changed directive
        compiler_directives={"language_level": 3, "linetrace": TRACE},
    ),
)
