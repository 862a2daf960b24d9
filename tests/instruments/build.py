"""Builds extensions of the tests' own over the package's kernel declarations (its .pxd files).

They are no part of the package: the tests build them, once for each state of the declarations.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

import dynamo_router

PACKAGE = Path(dynamo_router.__file__).parent
CACHE = Path(__file__).resolve().parents[2] / "build" / "instruments"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
DECLARED = ("indexer/**/*.pxd", "base/native/*.pxd", "router/policy/*.pxd")
FLAGS = ("-O1", "-g0")
SANITIZED_FLAGS = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer")


def compiler() -> str:
    """The C compiler that the interpreter was built with, or the system's."""
    return str(sysconfig.get_config_var("CC") or "cc").split()[0]


def compile_extension(
    source: Path, folder: Path, flags: Sequence[str], package: Path = PACKAGE
) -> Path:
    """Build `source`, a .pyx, in an empty folder; `package` has the declarations it cimports.

    CalledProcessError, with what the compiler said, if that fails.
    """
    (folder / "tree").mkdir()
    (folder / "tree" / "dynamo_router").symlink_to(package)
    c_file = folder / f"{source.stem}.c"
    library = folder / f"{source.stem}{SUFFIX}"
    # A sanitizer that is loaded into the interpreter is not for the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for command in (
        [sys.executable, "-m", "cython", "-3", "-I", folder / "tree", source, "-o", c_file],
        [
            *(compiler(), *flags, "-fPIC", "-shared", f"-I{sysconfig.get_path('include')}"),
            *(c_file, "-o", library, "-lpthread"),
        ],
    ):
        subprocess.run(command, check=True, env=environment)
    return library


def load_instrument(source: Path) -> ModuleType:
    """The module of a .pyx, built unless it was before."""
    sanitized = os.environ.get("DYNAMO_ROUTER_SANITIZE") == "1"
    flags = SANITIZED_FLAGS if sanitized else FLAGS
    digest = hashlib.sha256(f"{PACKAGE} {SUFFIX} {version('cython')} {flags}".encode())
    declarations = [path for part in DECLARED for path in sorted(PACKAGE.glob(part))]
    for path in (source, *declarations):
        digest.update(path.read_bytes())
    built = CACHE / f"{source.stem}-{digest.hexdigest()[:16]}{SUFFIX}"
    if not built.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(dir=CACHE))
        try:
            compile_extension(source, folder, flags).replace(built)
        finally:
            shutil.rmtree(folder)
    loader = ExtensionFileLoader(source.stem, str(built))
    spec = spec_from_loader(source.stem, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
