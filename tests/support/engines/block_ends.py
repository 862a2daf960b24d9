"""Two engines' ends of a transfer in one process, and one in another process."""

import asyncio
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from support.places import ROOT
from support.polling import closed_after

from dynamo_router.engines.transfer import (
    ArenaLayout,
    NixlTransfer,
    Notification,
    Offer,
    ShmTransfer,
    Transfer,
)
from dynamo_router.engines.transfer.config import new_engine_id

BLOCKS = 64


def open_end(kind: str, folder: Path, blocks: int = BLOCKS, **layout: int) -> Transfer[Any]:
    if kind == "nixl":
        return NixlTransfer(new_engine_id(), ArenaLayout(**layout), blocks)
    return ShmTransfer(new_engine_id(), ArenaLayout(**layout), blocks, folder=folder)


class End:
    """An engine's end, with what it has been notified of."""

    def __init__(self, transfer: Transfer[Any]) -> None:
        self.transfer = transfer
        self.grants, self.arena = transfer.grants, transfer.arena
        self.notified: list[tuple[str, Notification]] = []
        transfer.listen(lambda engine_id, each: self.notified.append((engine_id, each)))
        transfer.expect(1)

    def filled(self, hashes: list[int]) -> list[int]:
        blocks = self.grants.allocate(len(hashes))
        self.arena.fill(blocks, hashes)
        return blocks

    def offer(self, blocks: list[int], attempt: str = "x") -> Offer:
        epochs = self.grants.epochs_of(blocks)
        return Offer(self.transfer.engine_id, attempt, tuple(blocks), epochs)


@asynccontextmanager
async def two_ends(
    kind: str, folder: Path, tp: int = 1, other_tp: int = 1
) -> AsyncIterator[tuple[End, End]]:
    async with closed_after(open_end(kind, folder, tp=tp)) as first:
        async with closed_after(open_end(kind, folder, tp=other_tp)) as second:
            yield End(first), End(second)


class OtherProcess:
    """An end in a process of its own. `do` runs a line of Python there: `end`, `peer` (us)."""

    def __init__(self, kind: str, folder: Path, ours: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, kind, str(folder), ours.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT / "tests",
        )
        self.pid = self._process.pid

    async def start(self) -> bytes:
        """Its metadata."""
        return b64decode(await self._line())

    async def do(self, code: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(code.replace("\n", "\x1f") + "\n")
        self._process.stdin.flush()
        return await self._line()

    def signal(self, number: int) -> None:
        """Send it a signal; by SIGSTOP it stands still when this returns."""
        from support.polling import wait_until  # ours: the other process knows no such package
        from support.processes import stands_still

        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until(lambda: stands_still(self.pid))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            while True:
                line = await asyncio.to_thread(self._process.stdout.readline)
                if line.startswith("> ") or not line:
                    return line[2:].strip()


@asynccontextmanager
async def other_process(
    kind: str, folder: Path, ours: Transfer[Any]
) -> AsyncIterator[tuple[OtherProcess, bytes]]:
    with closing(OtherProcess(kind, folder, ours.export())) as other:
        yield other, await other.start()


async def _serve(kind: str, folder: Path, theirs: bytes) -> None:
    from base64 import b64encode

    end = End(open_end(kind, folder))
    peer = end.transfer.connect(theirs)
    print(">", b64encode(end.transfer.export()).decode(), flush=True)
    scope: dict[str, Any] = {"end": end, "peer": peer, "Notification": Notification}
    while line := await asyncio.to_thread(sys.stdin.readline):
        exec(line.replace("\x1f", "\n"), scope)
        await asyncio.sleep(0.01)
        print(">", scope.get("result", ""), flush=True)
    await end.transfer.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2]), bytes.fromhex(sys.argv[3])))
