"""gRPC's C++ library as a peer: cpp.cc, compiled where there is a compiler and the library."""

import asyncio
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

import pytest
from support.servers.grpc_peers.peers import Answer, Pairs

SOURCE = Path(__file__).with_name("cpp.cc")
HEADER = Path("/usr/include/grpcpp/generic/generic_stub.h")
# The last one for the locks that gRPC's headers write into its users.
LIBRARIES = ("-lgrpc++", "-lgrpc", "-lgpr", "-labsl_synchronization")
COMPILE_S = 300.0


@cache
def program() -> str:
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
    return str(made)


class CppClient:
    """Each call is a process."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def call(
        self,
        path: str,
        messages: Sequence[bytes],
        *,
        deadline_s: float = 0.0,
        cancel_after: int = -1,
        metadata: Pairs = (),
    ) -> Answer:
        words = [self._address, path, str(int(deadline_s * 1e3)), str(cancel_after)]
        process = await asyncio.create_subprocess_exec(
            program(),
            "client",
            *words,
            *(f"{key}={value}" for key, value in metadata),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        asked = b"".join(struct.pack("I", len(message)) + message for message in messages)
        said, _ = await process.communicate(asked)
        assert process.returncode == 0
        return _read(said)


def _read(said: bytes) -> Answer:
    answer, at = Answer(), 0
    while at < len(said):
        kind, (size,) = said[at : at + 1], struct.unpack_from("I", said, at + 1)
        text, at = said[at + 5 : at + 5 + size], at + 5 + size
        if kind == b"M":
            answer.messages.append(text)
        elif kind == b"S":
            code, _, details = text.partition(b" ")
            answer.code, answer.details = int(code), details.decode()
        else:
            key, _, value = text.partition(b"\0")
            pairs = answer.initial if kind == b"I" else answer.trailing
            pairs[key.decode()] = value.decode("latin-1")
    return answer


@asynccontextmanager
async def cpp_server() -> AsyncIterator[str]:
    """Its address."""
    process = await asyncio.create_subprocess_exec(
        program(), "server", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()
