"""Engines that fail on demand behind a router, all real processes: what it does, and that it heals.

Two engines in one mocker process; 0 is the one that fails.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.calls import messages_of
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command, http_json

from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
PROMPT = list(range(100, 100 + 6 * BLOCK))
OTHER = list(range(5000, 5000 + 4 * BLOCK))


class House:
    """A router before two engines, and the API that makes them fail."""

    router: Command
    mocker: Command

    def __init__(self, http: str, faults: str, ids: list[int], generate: Any) -> None:
        self._http, self._faults, self.ids = http, faults, ids
        self._generate = generate

    async def fault(self, body: dict[str, object] | None = None) -> None:
        """Make engine 0 fail, or lift its fault."""
        await http_json(self._faults, "/engines/0/fault", body or {}, method="PUT")

    async def restart(self) -> None:
        await http_json(self._faults, "/engines/0/restart", {})

    async def ask(self, prompt: list[int], engine: int | None = None, max_tokens: int = 3) -> int:
        """How many tokens came, from that engine if one is named."""
        request = pb.GenerateRequest(max_tokens=max_tokens, streaming=True)
        request.tokenized.input_token_ids.extend(prompt)
        pin = () if engine is None else (("x-dynamo-worker-instance-id", str(self.ids[engine])),)
        tokens = 0
        for response in await messages_of(self._generate(request, metadata=pin)):
            tokens += len(response.chunk.token_ids)
        return tokens

    async def state(self, engine: int) -> tuple[str, str]:
        """(of the worker, of its events)."""
        rows = (await http_json(self._http, "/workers"))["workers"]
        (row,) = [row for row in rows if row["worker_id"] == self.ids[engine]]
        return row["state"], row["event_source_state"]

    async def is_state(self, state: str) -> None:
        async def there() -> bool:
            return (await self.state(0))[0] == state

        await until(there, 60.0)

    async def overlap(self, prompt: list[int], engine: int = 0) -> int:
        told = await http_json(self._http, "/overlaps", {"token_ids": prompt})
        return int(told.get(str(self.ids[engine]), 0))

    async def has_overlap(self, prompt: list[int], blocks: int) -> None:
        async def there() -> bool:
            return await self.overlap(prompt) == blocks and (await self.state(0))[1] == "exact"

        await until(there, 60.0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(free_port()))
        mocker = await stack.enter_async_context(
            command(
                tmp_path / "mocker", "mocker", "--workers", "2", "--port", "0", "--fault-port", "0",
                "--block-size", str(BLOCK), "--num-gpu-blocks", "256", "--nats", nats.url,
                "--speedup-ratio", "20",
            )
        )  # fmt: skip
        await mocker.says("ready")
        lines = [line.split() for line in mocker.text.splitlines()]
        engines = [words for words in lines if words[0] == "engine"]
        faults = next(words[1] for words in lines if words[0] == "faults:")
        router = await stack.enter_async_context(
            command(
                tmp_path / "serve", "serve", "--port", "0", "--http-port", "0",
                "--block-size", str(BLOCK), "--nats", nats.url, "--request-timeout-s", "5",
                *(word for words in engines for word in ("--worker", words[2])),
            )
        )  # fmt: skip
        words = (await router.says("dynamo-router ready")).split()
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(words[words.index("grpc") + 1])
        )
        house = House(
            words[words.index("http") + 1],
            faults.removeprefix("http://"),
            [int(words[4]) for words in engines],
            channel.unary_stream(
                f"/{SERVICE}/Generate",
                pb.GenerateRequest.SerializeToString,
                pb.GenerateResponse.FromString,
            ),
        )
        house.router, house.mocker = router, mocker
        await house.is_state("ready")
        assert await house.ask(PROMPT, 0) == 3
        await house.has_overlap(PROMPT, 6)
        yield house


async def test_a_crashed_engine_is_left_out_and_its_ghosts_are_gone_when_it_is_back(house):
    await house.fault({"crash": True})
    assert await house.ask(PROMPT) == 3, "the other one answers"
    await house.is_state("unhealthy")
    await house.fault()
    await house.is_state("ready")
    assert await house.ask(OTHER, 0) == 3
    await house.has_overlap(OTHER, 4)
    assert await house.overlap(PROMPT) == 0, "it started with an empty cache"


async def test_an_engine_that_hangs_costs_one_request_its_patience_and_comes_back(house):
    await house.fault({"hang": True})
    assert await house.ask(PROMPT) == 3, "tried again on the other one"
    await house.is_state("unhealthy")
    for start in range(3):
        assert await house.ask([start] * 40) == 3
    await house.fault()
    await house.is_state("ready")
    assert await house.ask(PROMPT, 0) == 3
    await house.has_overlap(PROMPT, 6)


async def test_a_slow_engine_keeps_its_requests_and_its_place(house):
    await house.fault({"slow": 20})
    assert await house.ask(PROMPT, 0, 5) == 5
    assert (await house.state(0))[0] == "ready"
    await house.fault()
    assert await house.ask(PROMPT, 0, 5) == 5


@pytest.mark.parametrize(
    "fault",
    [{"drop": 1.0}, {"drop": 0.5, "seed": 3}, {"duplicate": 1.0}, {"reorder": 1.0}],
    ids=lambda fault: "-".join(fault),
)
async def test_events_mishandled_on_the_way_are_made_good(house, fault):
    await house.fault(fault)
    prompts = [[*range(start, start + 3 * BLOCK)] for start in range(1000, 2000, 100)]
    for prompt in prompts:
        assert await house.ask(prompt, 0) == 3
    await house.fault()
    assert await house.ask(OTHER, 0) == 3  # the next event tells whether one is missing
    for prompt, blocks in ((OTHER, 4), (PROMPT, 6), *((prompt, 3) for prompt in prompts)):
        await house.has_overlap(prompt, blocks)


async def test_an_engine_restarted_in_place_with_ids_from_zero_leaves_no_ghosts(house):
    await house.restart()
    await house.is_state("ready")

    async def answered() -> bool:
        try:
            return await house.ask(OTHER, 0) == 3
        except grpc.aio.AioRpcError:
            return False  # its new connection is not there yet

    await until(answered, 60.0)
    await house.has_overlap(OTHER, 4)
    assert await house.overlap(PROMPT) == 0


async def test_a_process_that_crashes_takes_all_its_engines(house):
    with pytest.raises(OSError):  # the answer never comes
        await http_json(house._faults, "/crash", {})
    assert await house.mocker.ended() == -signal.SIGKILL
    await house.is_state("unhealthy")
    with pytest.raises(grpc.aio.AioRpcError) as nobody:
        await house.ask(PROMPT)
    assert nobody.value.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: "unhealthy" in house.router.text)
