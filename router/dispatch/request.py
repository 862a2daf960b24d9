"""A request on its way through the router, and the abort of one whose client is gone."""

import asyncio
import contextlib
import math
from dataclasses import dataclass

import grpc
from grpc import aio

from ...runtime.identity import WorkerWithDpRank
from ...workers.trtllm_client import TrtllmClient
from ..admission import NORMAL, Urgency
from ..policy import Decision
from .generate_request import GenerateFacts

ABORT_TIMEOUT_S = 2.0
MAX_PENDING_ABORTS = 1024


@dataclass(slots=True)
class Flight:
    """One request in flight. Times are seconds of the dispatcher's clock."""

    request_id: str
    body: bytes
    facts: GenerateFacts
    arrived: float
    pinned: WorkerWithDpRank | None = None
    urgency: Urgency = NORMAL
    decision: Decision | None = None
    """of the current attempt"""
    decision_s: float = 0.0
    """how long that decision took"""
    client: TrtllmClient | None = None
    call: "aio.UnaryStreamCall[bytes, bytes] | None" = None
    messages: int = 0
    """begun to be passed to the client; from the first one on there is no second attempt"""
    last_message: bytes = b""
    last_message_at: float = 0.0
    waiting_since: float = math.inf
    """since when the worker owes us a message; infinite while it does not"""
    silent: bool = False
    """the worker was given up because it owed a message for too long"""
    aborted: bool = False
    """somebody asked to abort it"""


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
        if len(self._tasks) >= MAX_PENDING_ABORTS:
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
        await client.abort(request_id, timeout=ABORT_TIMEOUT_S)
