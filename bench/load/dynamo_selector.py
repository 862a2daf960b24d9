"""NVIDIA Dynamo's selection service as a process, to be measured beside ours."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from ...base.errors import RouterError
from .dynamo_peer import HOST, dynamo_environ, start_module, until_answered


class DynamoSelector:
    """Chooses among the workers that it is told of over HTTP, without their KV events; there from
    `async with` to its end. It listens on all addresses: that is no setting of it.

    PYTHON is one that has ai-dynamo 1.6.1. RouterError if it does not start.
    """

    def __init__(self, python: str, port: int, *, start_timeout_s: float) -> None:
        self.address = f"{HOST}:{port}"
        self._python = python
        self._start_timeout_s = start_timeout_s
        self._stack = AsyncExitStack()
        self.pid = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port = self.address.rpartition(":")[2]
            child = await start_module(
                [self._python, "-m", "dynamo.select_service", "--port", port],
                {**dynamo_environ(home), "DYN_USE_KV_EVENTS": "false"},
                self._start_timeout_s,
                stack,
            )
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    await until_answered((child,), "GET", f"http://{self.address}/health")
            except TimeoutError:
                text = f"Dynamo was not ready within {self._start_timeout_s:g} s"
                raise RouterError(text) from None
            assert child.pid is not None
            self.pid = child.pid
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
