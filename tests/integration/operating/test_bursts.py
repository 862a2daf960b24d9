"""Short prompts that arrive together, at a router and mock engines as processes, over each API."""

import asyncio
import json
import math
import random
import re
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from support.fronts.processes import Fronts
from support.polling import until
from support.processes import command

from dynamo_router.workers.trtllm_proto import pb

BURSTS = 20
SERVE = ("--block-size", "16", "--http-frontend", "0", "--slo-itl-ms", "10000")
"""An objective that engines keep, however busy the machine is: a prompt that would make another
answer late goes where all are late anyway."""
HELD_UP = 2
"""Bursts that a busy machine may spread over more than an engine's step, whatever is chosen."""
CASES = [  # the API, engines, prompts in a burst, and how many bursts may be uneven
    ("grpc", 4, 12, HELD_UP),
    ("grpc-fronts", 4, 12, HELD_UP),
    ("openai-list", 4, 12, BURSTS // 2),
    ("openai-n", 4, 12, BURSTS // 2),
    ("grpc", 32, 42, HELD_UP),
    ("openai-list", 32, 42, HELD_UP),
]


def burst(requests: int) -> list[list[int]]:
    lengths = [random.randint(30, 60) for _ in range(requests)]
    return [[random.randrange(5, 4000) for _ in range(length)] for length in lengths]


async def sent(router: Fronts) -> Counter[str]:
    """Requests that ended, by worker."""
    found = await router.metrics()
    return Counter(
        {
            name: int(count)
            for name, count in found.items()
            if name.startswith("dynamo_router_worker_requests_total")
        }
    )


async def ask(router: Fronts, openai: str, api: str, prompts: list[list[int]]) -> None:
    if api.startswith("grpc"):  # over one connection, so of one process where there are two
        async with router.client() as client:
            requests = [pb.GenerateRequest(max_tokens=3, streaming=True) for _ in prompts]
            for request, prompt in zip(requests, prompts, strict=True):
                request.tokenized.input_token_ids.extend(prompt)
            await asyncio.gather(*map(client.answers, requests))
        return
    body = {"model": await model_of(openai), "max_tokens": 3, "temperature": 1.0}
    n = {"prompt": prompts[0], "n": len(prompts)}
    body |= {"prompt": prompts} if api == "openai-list" else n
    found = await router.at(openai, "/v1/completions", body)
    assert len(found["choices"]) == len(prompts)


async def model_of(openai: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://{openai}/v1/models", timeout=20) as answer:
            return str(json.load(answer)["data"][0]["id"])

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(("api", "workers", "requests", "uneven"), CASES)
async def test_no_worker_gets_much_more_than_its_share(
    tmp_path: Path, api: str, workers: int, requests: int, uneven: int
) -> None:
    """From the first burst on. A list of prompts that reaches four engines while first tokens come
    may still give the engine that was first one more."""
    flags = ("--port", "0", "--http-port", "0", "--mockers", str(workers), *SERVE)
    if api.endswith("fronts"):
        flags += ("--fronts", "2")
    async with command(tmp_path, "serve", *flags) as process:
        ready = await process.says("dynamo-router ready")
        found = re.search(r"grpc (\S+) http (\S+) openai (\S+)", ready)
        assert found is not None, ready
        router, before = Fronts(process, found[1], found[2]), Counter[str]()
        largest = []
        for turn in range(1, BURSTS + 1):
            await ask(router, found[3], api, burst(requests))

            async def all_ended(turn: int = turn) -> bool:
                return sum((await sent(router)).values()) == turn * requests

            await until(all_ended)
            now = await sent(router)
            largest.append(max((now - before).values()))
            before = now
        limit = math.ceil(1.5 * requests / workers)
        assert sum(most > limit for most in largest) <= uneven, largest
