"""Seeded schedules of SIGKILL and SIGSTOP for the processes of a prefill queue: prefill and decode
engines, NATS, etcd. QUEUE_PROCESS_SEEDS=20 runs as many, 10 to 15 s each; -s shows figures."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic

import pytest
from support.engines.queue_processes import running_queue
from support.polling import until

SEEDS = int(os.environ.get("QUEUE_PROCESS_SEEDS", "2"))
REQUESTS, LASTS_S = 40, 1.5
ENDS_S = 60.0
"""in which a request has ended, whatever happens on a busy machine"""
TRUTHFUL = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "503", "429")
"""what an answer that is none may say here: no worker can take the request now"""


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_request_ends_once_and_nothing_is_held(seed: int, tmp_path: Path) -> None:
    async with running_queue(seed, tmp_path) as (fleet, clients):
        rng = Random(seed + 10_000)
        faults = [asyncio.create_task(fleet.befall()) for _ in range(rng.randrange(2, 4))]
        requests = []
        for _ in range(REQUESTS):
            requests.append(asyncio.create_task(clients.ask()))
            await asyncio.sleep(rng.expovariate(REQUESTS / LASTS_S))
        await asyncio.gather(*faults)
        requests += [asyncio.create_task(clients.ask()) for _ in range(4)]  # and it goes on
        async with asyncio.timeout(ENDS_S):
            await asyncio.gather(*requests)
        streams, ended = clients.streams, monotonic()
        assert streams.whole + len(streams.wrong) == len(requests)
        assert all(any(word in each for word in TRUTHFUL) for each in streams.wrong), streams.wrong

        held = await fleet.held()
        with suppress(TimeoutError, AssertionError):

            async def is_free() -> bool:
                nonlocal held
                held = await fleet.held()
                return not held

            await until(is_free)
        assert held == {}
        await until(lambda: not clients.server.dispatcher.in_flight)
        took = f"nothing was held {monotonic() - ended:.2f} s after the last one"
        print(f"\n{dict(fleet.faults)}: {streams.whole} whole, {streams.wrong}; {took};")
        print(await fleet.counted_by("dynamo_router_prefill_queue_"))
        assert await fleet.counted("dynamo_router_kv_corrupt_total") == 0
        assert await fleet.counted("dynamo_router_kv_blocks_checked_total") > 0
        assert await fleet.counted("dynamo_router_prefill_queue_prefills_total") > 0
    assert list(fleet.blocks.iterdir()) == []
