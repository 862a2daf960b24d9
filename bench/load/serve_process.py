"""A `dynamo-router serve` of our own, as a child process: what the demo sends its load to."""

import asyncio
import contextlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from ...engines.mocker import TierConfig
from ...process.child_process import ChildError, ChildProcess
from .child import STOP_TIMEOUT_S, failed_child

if TYPE_CHECKING:
    import aiohttp

READY = re.compile(r"dynamo-router ready: grpc (\S+) http (\S+)")
POLL_S = 0.05
_NAME = "dynamo-router serve"

UNANNOUNCED = ("--lame-duck-s", "0")
"""No load balancer is in front of it."""


def mock_fleet_arguments(
    mode: str,
    *,
    workers: int,
    block_size: int,
    num_gpu_blocks: int,
    speedup_ratio: float = 1.0,
    tiers: TierConfig | None = None,
) -> list[str]:
    """The arguments of a `serve` with mock engines of its own, on free ports."""
    # Prompts of any length that a cache holds, as in simulations.
    mocks = {"num_gpu_blocks": num_gpu_blocks, "speedup_ratio": speedup_ratio, "max_model_len": 0}
    if tiers is not None:
        sizes = ("host_blocks", "disk_blocks", "host_bandwidth_gbps", "disk_bandwidth_gbps")
        mocks |= {key: getattr(tiers, key) for key in sizes}
    return [
        *("--mode", mode, "--mockers", str(workers), "--port", "0", "--http-port", "0"),
        *("--block-size", str(block_size), "--log-level", "warning"),
        *(f"--mocker-options={key}={value}" for key, value in mocks.items()),
    ]


def worker_arguments(addresses: Iterable[str]) -> list[str]:
    """The arguments of a `serve` in front of these engines, on free ports."""
    workers = (f"--worker=grpc://{address}" for address in addresses)
    return [*workers, "--port=0", "--http-port=0", "--log-level=error"]


class ServeProcess:
    """The router and its mock engines, from `async with` to its end and never longer.

    Entering returns when `workers` engines can take requests. RouterError, with the last lines of
    the child, if that does not come about within `start_timeout_s`. Leaving stops the child and
    all of its children, by force if it takes long. `token` is one that may see the workers, where
    the router asks for one. `env` is added to our environment. `program` is the command line's, as
    arguments of Python.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        workers: int,
        start_timeout_s: float,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "dynamo_router"),
    ) -> None:
        self._workers = workers
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._start_timeout_s = start_timeout_s
        # -P: what lies in the current directory must not take a module's place.
        # A session of its own: Ctrl-C in our terminal is ours alone to take and to pass on.
        self._child = ChildProcess(
            [sys.executable, "-P", *program, "serve", *arguments, *UNANNOUNCED],
            stop_timeout_s=STOP_TIMEOUT_S,
            own_session=True,
            env=env,
        )
        self.grpc_address = ""
        self.http_address = ""
        self.ready_line = ""
        self.worker_addresses: list[str] = []
        """of the engines that can take requests: HOST:PORT"""

    @property
    def pid(self) -> int:
        """Of the router; 0 while it does not run."""
        return self._child.pid or 0

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._child.start(self._on_line, self._start_timeout_s)
                await self._workers_ready()
        except ChildError as error:
            raise failed_child(_NAME, error.reason, error.output) from None
        except TimeoutError:
            await self._child.stop()
            reason = f"was not ready within {self._start_timeout_s:g} s"
            raise failed_child(_NAME, reason, self._child.output) from None
        except BaseException:
            await self._child.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._child.stop()

    def _on_line(self, line: str) -> bool:
        if found := READY.search(line):
            self.grpc_address, self.http_address = found.groups()
            self.ready_line = line
        return bool(found)

    async def _workers_ready(self) -> None:
        """Ready to listen is not yet ready to serve: the router still connects to its engines."""
        import aiohttp  # by what runs alone: a command that prints its help needs no client

        async with aiohttp.ClientSession(trust_env=False, headers=self._headers) as http:
            while await self._ready_workers(http) < self._workers:
                if not self._child.running:
                    await self._child.stop()
                    raise ChildError("ended while its engines started", self._child.output)
                await asyncio.sleep(POLL_S)

    async def _ready_workers(self, http: "aiohttp.ClientSession") -> int:
        from aiohttp import ClientError

        with contextlib.suppress(ClientError):
            async with http.get(f"http://{self.http_address}/workers") as answer:
                listed = await answer.json()
                workers = listed["workers"] if isinstance(listed, dict) else listed
                ready = [worker for worker in workers if worker["state"].lower() == "ready"]
                self.worker_addresses = [worker["address"] for worker in ready]
        return len(self.worker_addresses)
