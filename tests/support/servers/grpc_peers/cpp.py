"""gRPC's C++ library as a peer: cpp.cc, compiled where there is a compiler and the library."""

import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

import pytest

SOURCE = Path(__file__).with_name("cpp.cc")
HEADER = Path("/usr/include/grpcpp/generic/generic_stub.h")
# The last one for the locks that gRPC's headers write into its users.
LIBRARIES = ("-lgrpc++", "-lgrpc", "-lgpr", "-labsl_synchronization")
COMPILE_S = 300.0


@cache
def cpp_program() -> tuple[str, ...]:
    """The compiled program, kept between runs. The test is skipped where it cannot be made."""
    compiler = shutil.which("g++")
    if compiler is None or not HEADER.exists():
        pytest.skip("no g++ with gRPC's C++ library (Debian: g++ libgrpc++-dev)")
    name = f"grpc_cpp-{sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    made = Path(gettempdir()) / name
    if not made.exists():
        part = made.with_suffix(".part")
        command = [compiler, "-std=c++17", "-O1", str(SOURCE), "-o", str(part), *LIBRARIES]
        subprocess.run(command, check=True, timeout=COMPILE_S)
        part.rename(made)
    return (str(made),)
