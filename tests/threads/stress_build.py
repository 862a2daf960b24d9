"""Builds the stress program with ThreadSanitizer, out of the kernels' declarations."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

from instruments.build import PACKAGE, compile_extension, compiler

SOURCE = Path(__file__).with_name("rwlock_stress.pyx")
FLAGS = ("-O1", "-g", "-fsanitize=thread")


class CannotSanitize(Exception):
    """Why there is no ThreadSanitizer here."""


def sanitizer_library(cc: str, folder: Path) -> str:
    """The runtime that a sanitized extension needs loaded first; tried out by a small program."""
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        built = subprocess.run(
            [cc, "-fsanitize=thread", str(probe), "-o", str(folder / "probe")],
            capture_output=True,
            text=True,
        )
        if built.returncode != 0:
            raise CannotSanitize(f"{cc} -fsanitize=thread: {built.stderr.strip()[-200:]}")
        ran = subprocess.run([folder / "probe"], capture_output=True, text=True)
        if ran.returncode != 0:
            raise CannotSanitize(f"a sanitized program fails here: {ran.stderr.strip()[-200:]}")
        named = subprocess.run([cc, "-print-file-name=libtsan.so"], capture_output=True, text=True)
    except OSError as error:
        raise CannotSanitize(f"no compiler: {error}") from None
    library = named.stdout.strip()
    if not Path(library).is_absolute():
        raise CannotSanitize(f"{cc} has no shared libtsan to load into an interpreter")
    return library


def build(folder: Path, package: Path = PACKAGE) -> str:
    """Build rwlock_stress in a folder, from the .pxd files of `package`; the library to preload."""
    if find_spec("Cython") is None:
        raise CannotSanitize("Cython is not installed")
    library = sanitizer_library(compiler(), folder)
    compile_extension(SOURCE, folder, FLAGS, package)
    return library
