"""Clients and servers that are programs with the words of cpp.cc, whosever library they are on."""

import asyncio
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from support.servers.grpc_peers.cpp import cpp_program
from support.servers.grpc_peers.node import node_program
from support.servers.grpc_peers.peers import Answer, Pairs

Command = Sequence[str]
PROGRAMS = {"grpc C++": cpp_program, "grpc-js": node_program}
"""What gives the command of each."""


class ProgramClient:
    """Each call is a process."""

    def __init__(self, command: Command, address: str) -> None:
        self._command, self._address = command, address

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
            *self._command,
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
async def program_server(command: Command) -> AsyncIterator[str]:
    """Its address."""
    process = await asyncio.create_subprocess_exec(
        *command, "server", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()
