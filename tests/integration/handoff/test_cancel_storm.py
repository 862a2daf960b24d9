"""Clients that leave in all phases of a hand-off, at real processes: a prefill engine, a decode
engine, the router. CANCEL_STORM is how many there are."""

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from support.polling import until
from support.processes import command, http_json

from dynamo_router.workers.dialects import for_prefill
from dynamo_router.workers.trtllm_proto import SERVICE, pb

COUNT = int(os.environ.get("CANCEL_STORM", "300"))
LEASE_S = 2.0
BLOCK, BLOCKS, TOKENS = 16, 640, 320
ENGINE = (
    "--port", "0", "--vocab-size", "4096", "--model-id", "tiny", "--block-size", str(BLOCK),
    "--num-gpu-blocks", str(BLOCKS), "--max-model-len", str(BLOCK * BLOCKS), "--transfer", "shm",
    "--transfer-lease-s", str(LEASE_S), "--speedup-ratio", "4", "--max-num-seqs", "64",
)  # fmt: skip


def asked(name: str, first: int, tokens: int, answer: int) -> bytes:
    request = pb.GenerateRequest(request_id=name, max_tokens=answer, streaming=True)
    request.tokenized.input_token_ids.extend((first * 7 + n) % 4000 for n in range(tokens))
    request.ignore_eos = True
    data: bytes = request.SerializeToString()
    return data


def generate(address: str, stack: AsyncExitStack) -> Any:
    channel = grpc.aio.insecure_channel(address)
    stack.push_async_callback(channel.close)
    return channel.unary_stream(f"/{SERVICE}/Generate", None, None)


async def leave(call: Any, number: int, rng: random.Random, left: list[int]) -> None:
    """Begin a request, and go: at once, while its prompt waits or is computed, or later."""
    stream = call(asked(f"r{number}", number, TOKENS, 400))
    how, pause = rng.randrange(4), rng.random()
    try:
        if how == 1:
            await asyncio.sleep(0.02 * pause)
        elif how == 2:
            await asyncio.sleep(2 * pause)
        elif how == 3:
            await asyncio.wait_for(stream.read(), 5 * pause)
            left.append(number)
    except TimeoutError:
        pass
    finally:
        stream.cancel()


async def filled(call: Any, name: str, is_prefill: bool) -> None:
    """A prompt that needs each block of an engine was answered: so none is held."""
    body = asked(name, 1, BLOCK * (BLOCKS - 1), 1)
    body = for_prefill(body) if is_prefill else body
    messages = [pb.GenerateResponse.FromString(each) async for each in call(body)]
    assert messages[-1].complete.completion_tokens == 1


async def test_no_block_stays_held(tmp_path: Path) -> None:
    rng, left = random.Random(1), list[int]()
    async with AsyncExitStack() as stack:
        folder = tmp_path / "blocks"
        folder.mkdir()
        addresses = []
        for mode in ("prefill", "decode"):
            words = ("mocker", *ENGINE, "--transfer-folder", str(folder))
            run = command(tmp_path / mode, *words, "--disaggregation-mode", mode)
            line = await (await stack.enter_async_context(run)).says("engine 0: grpc://")
            addresses.append(line.split("grpc://")[1].split()[0])
        run = command(
            tmp_path / "serve", "serve", "--port", "0", "--http-port", "0", "--block-size",
            str(BLOCK), "--disagg", "always", "--no-kv-events",
            "--prefill-worker", f"grpc://{addresses[0]}", "--worker", f"grpc://{addresses[1]}",
        )  # fmt: skip
        line = (await (await stack.enter_async_context(run)).says("dynamo-router ready")).split()
        router, http = line[line.index("grpc") + 1], line[line.index("http") + 1]
        call = generate(router, stack)

        async def both_are_ready() -> bool:
            health = await http_json(http, "/health")
            return bool(health["prefill"]["workers"].get("ready") and health["workers"]["ready"])

        await until(both_are_ready)
        whole = [pb.GenerateResponse.FromString(m) async for m in call(asked("a", 0, TOKENS, 4))]
        assert whole[-1].complete.completion_tokens == 4
        await asyncio.gather(*(leave(call, number, rng, left) for number in range(COUNT)))
        ended = time.monotonic()
        assert 0 < len(left) < COUNT, "some had a token, others none"

        async def nothing_is_booked() -> bool:
            found = (await http_json(http, "/workers"))["workers"]
            assert {each.get("pool", "") for each in found} == {"", "prefill"}
            return not any(each["active_requests"] or each["active_blocks"] for each in found)

        await until(nothing_is_booked)
        booked = time.monotonic() - ended
        took = []
        for is_prefill, address in zip((True, False), addresses, strict=True):
            await filled(generate(address, stack), f"all of {address}", is_prefill)
            took.append(time.monotonic() - ended)
        whole = [pb.GenerateResponse.FromString(m) async for m in call(asked("z", 0, TOKENS, 4))]
        assert whole[-1].complete.completion_tokens == 4
        blocks = f"all blocks free after {took[0]:.2f} s (prefill), {took[1]:.2f} s (decode)"
        print(
            f"{COUNT} clients, {len(left)} with a token: no booking after {booked:.2f} s, {blocks}"
        )
