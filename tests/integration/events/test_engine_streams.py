"""Engines that tell their cache events over gRPC, as processes: the router finds that by itself."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio
from support.adversity.engine_cache import cached_blocks, leading_blocks
from support.calls import messages_of
from support.fleet import BLOCK, PROMPT, Fleet
from support.polling import until
from support.processes import Command, http_json

from dynamo_router.workers.trtllm_proto import SERVICE, pb

FAST = ("--speedup-ratio", "20", "--heartbeat-s", "0.3", "--fault-port", "0")
OTHERS = [list(range(n, n + 5 * BLOCK)) for n in (1000, 2000, 3000)]


class Streams(Fleet):
    """Without a nats-server, unless asked for, and with faults on demand."""

    async def start_engine(self, number: int, *more: str) -> Command:
        return await super().start_engine(number, *(more or FAST))

    async def set_fault(self, number: int, **fault: float) -> None:
        line = await self.engines[number].says("faults:")
        await http_json(line.rpartition("/")[2], "/engines/0/fault", fault, "PUT")

    async def restart_engine(self, number: int, *more: str) -> None:
        """Killed, and started again on its port."""
        await self.engines[number].stop(signal.SIGKILL)
        self.engines[number] = await self.start_engine(number, *more)

    async def ask_engine(self, number: int, prompt: list[int]) -> None:
        """Without the router: so that this engine's cache changes."""
        async with aio.insecure_channel(f"127.0.0.1:{self.ports[number]}") as channel:
            generate = channel.unary_stream(
                f"/{SERVICE}/Generate",
                pb.GenerateRequest.SerializeToString,
                pb.GenerateResponse.FromString,
            )
            request = pb.GenerateRequest(request_id="direct", max_tokens=2)
            request.tokenized.input_token_ids.extend(prompt)
            await messages_of(generate(request))

    async def ask_all(self, first: int = 0) -> None:
        """Each prompt once; their tokens are others from another `first` on."""
        for prompt in (PROMPT, *OTHERS):
            await self.ask([token + first for token in prompt])

    async def is_told_by(self, source: str, state: str = "exact") -> bool:
        rows = (await self.workers()).values()
        found = {(row["event_source"], row["event_source_state"]) for row in rows}
        return found == {(source, state)}

    async def is_true(self) -> bool:
        """Whether the index is what the engines hold."""
        for number, row in (await self.workers()).items():
            async with aio.insecure_channel(f"127.0.0.1:{self.ports[number]}") as channel:
                held = await cached_blocks(channel)
            if row["indexed_blocks"] != len(held) or row["event_source_state"] != "exact":
                return False
            for prompt in (PROMPT, *OTHERS):
                claimed = (await self.overlaps(prompt)).get(str(row["worker_id"]), 0)
                if claimed != leading_blocks(prompt, held, BLOCK):
                    return False
        return True


@asynccontextmanager
async def streaming(folder: Path, *serve: str, with_nats: bool = False) -> AsyncIterator[Streams]:
    async with Streams(folder, *serve, with_nats=with_nats) as fleet:
        yield fleet


async def test_two_engines_and_no_further_flag_give_an_exact_index(tmp_path: Path) -> None:
    async with streaming(tmp_path) as fleet:
        await until(lambda: fleet.is_told_by("grpc"))
        await fleet.ask_all()
        await until(fleet.is_true)
        assert sorted((await fleet.overlaps(PROMPT)).values()) == [6]
        tokens, cached = await fleet.ask([*PROMPT, 1])
        assert cached == len(PROMPT), "it went to the engine that has it"
        await fleet.restart_engine(0)
        await fleet.restart_engine(1)
        await until(fleet.is_true)
        assert await fleet.overlaps(PROMPT) == {}
        await fleet.ask_all()
        await until(fleet.is_true)
        assert await fleet.is_told_by("grpc")


FAULTS = [{"cut": 0.5}, {"drop": 0.4}, {"overrun": 0.4}, {"reorder": 0.5, "duplicate": 0.5}]


async def test_what_a_stream_loses_comes_back(tmp_path: Path) -> None:
    async with streaming(tmp_path) as fleet:
        await until(lambda: fleet.is_told_by("grpc"))
        for turn, fault in enumerate(FAULTS):
            for number in range(2):
                await fleet.set_fault(number, **fault, seed=3 + number)
            await fleet.ask_all(5_000 * turn)
            for number in range(2):
                await fleet.set_fault(number)
                # What an engine's own buffer lost shows with its next event.
                await fleet.ask_engine(number, OTHERS[number][: 3 * BLOCK] + [turn] * 3 * BLOCK)
            await until(fleet.is_true)
        assert await fleet.is_told_by("grpc")


async def test_an_engine_that_tells_nothing_is_predicted_until_it_does(tmp_path: Path) -> None:
    async with streaming(tmp_path) as fleet:
        for number in range(2):
            await fleet.restart_engine(number, *FAST, "--no-kv-stream")
        await until(lambda: fleet.is_told_by("predicted", "approximate"))
        await fleet.ask_all()
        assert sorted((await fleet.overlaps(PROMPT)).values()) == [6]
        # More if a request was first sent to the other one's dead connection: a guess, too.
        assert sum(row["indexed_blocks"] for row in (await fleet.workers()).values()) >= 6 + 15
        tokens, cached = await fleet.ask([*PROMPT, 1])
        assert cached == len(PROMPT)
        await fleet.router.says("KV events unavailable, predicting cache")


async def test_the_event_plane_goes_before_the_stream_and_the_stream_stands_in(
    tmp_path: Path,
) -> None:
    async with streaming(tmp_path, with_nats=True) as fleet:
        await until(lambda: fleet.is_told_by("nats"))
        await fleet.ask(PROMPT)
        await until(fleet.is_true)
        await fleet.kill_nats()
        await until(lambda: fleet.is_told_by("grpc"))
        await fleet.ask_all()
        await until(fleet.is_true)
        await fleet.nats.start()
        await until(lambda: fleet.is_told_by("nats"))
        await fleet.ask(PROMPT[: 3 * BLOCK] + OTHERS[0])
        await until(fleet.is_true)


async def test_the_sources_that_may_be_used_can_be_named(tmp_path: Path) -> None:
    async with streaming(tmp_path, "--event-sources", "grpc", with_nats=True) as fleet:
        await until(lambda: fleet.is_told_by("grpc"))
        await fleet.router.stop()
        await fleet.start_router("--event-sources", "nats")
        await until(lambda: fleet.is_told_by("nats"))
        await fleet.router.stop()
        await fleet.start_router("--event-sources", "none")
        assert await fleet.is_told_by("predicted", "approximate")
