"""Builds the stress program with ThreadSanitizer, out of the kernels' declarations."""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import dynamo_router

SOURCE = Path(__file__).with_name("rwlock_stress.pyx")
FLAGS = ["-O1", "-g", "-fsanitize=thread", "-fPIC"]


class CannotSanitize(Exception):
    """Why there is no ThreadSanitizer here."""


def sanitizer_library(compiler: str, folder: Path) -> str:
    """The runtime that a sanitized extension needs loaded first; tried out by a small program."""
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        built = subprocess.run(
            [compiler, "-fsanitize=thread", str(probe), "-o", str(folder / "probe")],
            capture_output=True,
            text=True,
        )
        if built.returncode != 0:
            raise CannotSanitize(f"{compiler} -fsanitize=thread: {built.stderr.strip()[-200:]}")
        ran = subprocess.run([folder / "probe"], capture_output=True, text=True)
        if ran.returncode != 0:
            raise CannotSanitize(f"a sanitized program fails here: {ran.stderr.strip()[-200:]}")
        named = subprocess.run(
            [compiler, "-print-file-name=libtsan.so"], capture_output=True, text=True
        )
    except OSError as error:
        raise CannotSanitize(f"no compiler: {error}") from None
    library = named.stdout.strip()
    if not Path(library).is_absolute():
        raise CannotSanitize(f"{compiler} has no shared libtsan to load into an interpreter")
    return library


def build(folder: Path, package: Path = Path(dynamo_router.__file__).parent) -> str:
    """Build rwlock_stress in a folder, from the .pxd files of `package`; the library to preload."""
    if importlib.util.find_spec("Cython") is None:
        raise CannotSanitize("Cython is not installed")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    library = sanitizer_library(compiler, folder)
    (folder / "tree").mkdir()
    (folder / "tree" / "dynamo_router").symlink_to(package)
    c_file = folder / "rwlock_stress.c"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", "-I", folder / "tree", SOURCE, "-o", c_file],
        check=True,
    )
    subprocess.run(
        [
            compiler,
            *FLAGS,
            "-shared",
            f"-I{sysconfig.get_path('include')}",
            c_file,
            "-o",
            folder / ("rwlock_stress" + sysconfig.get_config_var("EXT_SUFFIX")),
            "-lpthread",
        ],
        check=True,
    )
    return library
