"""`serve --fronts N` as processes, and clients that come over connections of their own."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from support.calls import messages_of
from support.processes import Command, command, http_json, http_text

from dynamo_router.workers.trtllm_proto import SERVICE, pb

LOOKS = 8
"""So many connections reach all of two processes, all but surely."""
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class Fronts:
    """A running router of several processes."""

    def __init__(self, router: Command, grpc_address: str, http_address: str) -> None:
        self.router, self.grpc, self.http = router, grpc_address, http_address

    async def health(self) -> Any:
        return await http_json(self.http, "/health")

    async def fronts(self) -> list[Any]:
        """What /health says of each."""
        return list((await self.health())["fronts"])

    async def pids(self) -> dict[int, int]:
        """The process of each number."""
        return {front["front"]: front["pid"] for front in await self.fronts()}

    async def workers(self) -> list[Any]:
        return list((await http_json(self.http, "/workers"))["workers"])

    async def booked(self) -> int:
        """Requests on all workers, as the process counts them that answers."""
        return sum(worker["active_requests"] for worker in await self.workers())

    async def nothing_booked(self) -> bool:
        """True soon after the last answer: the processes tell each other of ends behind it."""
        return not any([await self.booked() for _ in range(LOOKS)])

    async def at(self, address: str, path: str, body: object) -> Any:
        """The JSON of an answer to this JSON, over a connection of its own."""
        status, answer = await self.change(path, body, address=address)
        assert status == 200, answer
        return answer

    async def change(
        self, path: str, body: object = None, method: str = "POST", address: str = ""
    ) -> tuple[int, Any]:
        """The status and the JSON of the answer to a call that changes something."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}

        def ask() -> tuple[int, Any]:
            url = f"http://{address or self.http}{path}"
            request = urllib.request.Request(url, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        return await asyncio.to_thread(ask)

    async def metrics(self) -> dict[str, float]:
        text = await http_text(self.http, "/metrics")
        lines = [line for line in text.splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        """Somebody with a connection of its own, which is some process'."""
        async with grpc.aio.insecure_channel(self.grpc, options=OWN_CONNECTION) as channel:
            yield Client(channel)

    async def answers(self, request: Any) -> list[Any]:
        """Every message of a Generate over a connection of its own."""
        async with self.client() as client:
            return await client.answers(request)


class Client:
    """One connection's calls."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.worker_ids: Counter[str] = Counter()

    def call(self, request: Any, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        generate = self.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        return generate(request.SerializeToString(), metadata=metadata)

    async def answers(self, request: Any) -> list[Any]:
        call = self.call(request)
        found = [pb.GenerateResponse.FromString(each) for each in await messages_of(call)]
        for key, value in await call.trailing_metadata():
            if key == "x-dynamo-worker-id":
                self.worker_ids[value] += 1
        return found


@asynccontextmanager
async def frontend_fronts(folder: Path, *words: str, fronts: int = 2) -> AsyncIterator[Fronts]:
    """The command `frontend` with so many processes on a free port until the block ends."""
    flags = ("--fronts", str(fronts), "--http-port", "0", *words)
    async with command(folder, "frontend", *flags) as frontend:
        line = await frontend.says("dynamo-router ready")
        found = re.search(r"openai (\S+)", line)
        assert found is not None, line
        yield Fronts(frontend, "", found[1])


@asynccontextmanager
async def serve_fronts(folder: Path, *words: str, fronts: int = 2) -> AsyncIterator[Fronts]:
    """Serve with so many processes on free ports until the block ends."""
    flags = ("--fronts", str(fronts), "--port", "0", "--http-port", "0", *words)
    async with command(folder, "serve", *flags) as router:
        line = await router.says("dynamo-router ready")
        found = re.search(r"grpc (\S+) http (\S+)", line)
        assert found is not None, line
        yield Fronts(router, found[1], found[2])
