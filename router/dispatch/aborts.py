"""Aborts on their way to workers: for requests that nobody waits for any more."""

import asyncio
import contextlib

import grpc

from ...workers.trtllm_client import TrtllmClient

TIMEOUT_S = 2.0
MOST_PENDING = 1024


class Aborts:
    """Sends aborts in the background, each bounded in time, all bounded in number.

    The stream of such a request was cancelled already, so an abort that is lost costs little: a
    worker that cannot be told knows, or is gone.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """not sent, because too many were on their way"""

    @property
    def pending(self) -> int:
        return len(self._tasks)

    def send(self, client: TrtllmClient, request_id: str) -> None:
        if len(self._tasks) >= MOST_PENDING:
            self.dropped += 1
            return
        task = asyncio.create_task(_send(client, request_id), name=f"abort-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for those on their way, which is bounded by their timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _send(client: TrtllmClient, request_id: str) -> None:
    with contextlib.suppress(grpc.RpcError):
        await client.abort(request_id, timeout=TIMEOUT_S)
