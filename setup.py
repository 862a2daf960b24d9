"""setup.py: builds the kernels.

The checkout is installed as the package dynamo_router. Cython and the type
checkers look a name up by its path, so build/tree shows them the checkout under
that name: one link per folder and nothing else.
"""

from os import environ
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
LINKED = [
    "__init__.py",
    "__main__.py",
    "cli.py",
    "py.typed",
    "bench",
    "indexer",
    "router",
    "runtime",
    "slots",
    "workers",
]
# Every _name.pyx in a folder of the house is a kernel.
KERNELS = sorted(
    str(path.relative_to(HERE).with_suffix("")).replace("/", ".")
    for folder in ("indexer", "slots", "router", "workers", "bench")
    for path in (HERE / folder).rglob("_*.pyx")
)
TRACE = environ.get("DYNAMO_ROUTER_TRACE") == "1"
DEBUG = environ.get("DYNAMO_ROUTER_DEBUG") == "1"
SANITIZE = environ.get("DYNAMO_ROUTER_SANITIZE") == "1"


def link_tree() -> str:
    """Lay the checkout out as build/tree/dynamo_router; return build/tree."""
    package = HERE / "build" / "tree" / "dynamo_router"
    package.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link = package / name
        if not link.is_symlink():
            link.symlink_to(HERE / name)
    return str(package.parent)


def drop_stale_sources() -> None:
    """Remove generated C that is older than any declaration: cythonize misses relative cimports."""
    newest = max((path.stat().st_mtime for path in HERE.glob("*/_*.pxd")), default=0.0)
    for name in KERNELS:
        generated = HERE / (name.replace(".", "/") + ".c")
        if generated.exists() and generated.stat().st_mtime < newest:
            generated.unlink()


def compile_args() -> list[str]:
    if SANITIZE:
        return ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    if DEBUG:
        return ["-O0", "-g", "-UNDEBUG"]
    return ["-O3", "-g0"]


def kernel(name: str) -> Extension:
    return Extension(
        f"dynamo_router.{name}",
        [name.replace(".", "/") + ".pyx"],
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] if TRACE else [],
        extra_compile_args=compile_args(),
        extra_link_args=["-fsanitize=address,undefined"] if SANITIZE else [],
    )


class BuildPy(build_py):
    """The checkout is the package's folder, but setup.py is no part of it."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


drop_stale_sources()
setup(
    cmdclass={"build_py": BuildPy},
    ext_modules=cythonize(
        [kernel(name) for name in KERNELS],
        include_path=[link_tree()],
        force=TRACE,  # cythonize does not see a changed directive
        compiler_directives={"language_level": 3, "linetrace": TRACE},
    ),
)
