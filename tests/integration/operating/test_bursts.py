"""Short prompts that arrive together, at a router and mock engines as processes, over each API."""

import asyncio
import json
import math
import random
import re
import statistics
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from support.fronts.processes import Fronts
from support.polling import until
from support.processes import command

from dynamo_router.workers.trtllm_proto import pb

WORKERS, REQUESTS, BURSTS = 4, 12, 5
SERVE = ("--mockers", str(WORKERS), "--block-size", "16", "--http-frontend", "0")
APIS = ("grpc", "openai-list", "openai-n")


def burst() -> list[list[int]]:
    lengths = [random.randint(30, 60) for _ in range(REQUESTS)]
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
    if api == "grpc":
        async with router.client() as client:
            requests = [pb.GenerateRequest(max_tokens=3, streaming=True) for _ in prompts]
            for request, prompt in zip(requests, prompts, strict=True):
                request.tokenized.input_token_ids.extend(prompt)
            await asyncio.gather(*map(client.answers, requests))
        return
    body = {"model": await model_of(openai), "max_tokens": 3, "temperature": 1.0}
    body |= {"prompt": prompts} if api == "openai-list" else {"prompt": prompts[0], "n": REQUESTS}
    found = await router.at(openai, "/v1/completions", body)
    assert len(found["choices"]) == len(prompts)


async def model_of(openai: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://{openai}/v1/models", timeout=20) as answer:
            return str(json.load(answer)["data"][0]["id"])

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("api", APIS)
async def test_no_worker_gets_much_more_than_its_share(tmp_path: Path, api: str) -> None:
    """In most bursts: on a busy machine the prompts of one may come a step apart."""
    async with command(tmp_path, "serve", "--port", "0", "--http-port", "0", *SERVE) as process:
        ready = await process.says("dynamo-router ready")
        found = re.search(r"grpc (\S+) http (\S+) openai (\S+)", ready)
        assert found is not None, ready
        router, before = Fronts(process, found[1], found[2]), Counter[str]()
        largest = []
        for turn in range(1, BURSTS + 1):
            await ask(router, found[3], api, burst())

            async def all_ended(turn: int = turn) -> bool:
                return sum((await sent(router)).values()) == turn * REQUESTS

            await until(all_ended)
            now = await sent(router)
            largest.append(max((now - before).values()))
            before = now
        assert statistics.median(largest) <= math.ceil(1.5 * REQUESTS / WORKERS), largest
