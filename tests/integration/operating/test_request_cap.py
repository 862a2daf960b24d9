"""The cap on each worker's requests over gRPC: what is beyond it waits in the router."""

import asyncio

from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.serving import BLOCK, serving

from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig


async def test_an_engine_never_has_more_than_it_says_and_everybody_is_answered() -> None:
    engines = [FakeEngine(stall), FakeEngine(stall)]
    for engine in engines:
        engine.server_info.backend = "fake"
        engine.model.supported_features.append("max_num_seqs=2")
    router = KvRouterConfig(
        mode="round-robin",
        block_size=BLOCK,
        use_kv_events=False,
        admission=AdmissionConfig(max_requests_per_worker="engine"),
    )
    async with serving(*engines, router=router) as ports:
        asked = [asyncio.create_task(ports.answers(prompt(f"r{n}"))) for n in range(7)]
        queue = ports.server.pool.decider.queue
        assert queue is not None
        await until(lambda: len(queue) == 3)
        await until(lambda: [len(engine.requests) for engine in engines] == [2, 2])
        engines[0].go.set()  # two end there, and what waited goes there
        await until(lambda: len(queue) == 0)
        engines[1].go.set()
        assert [len(answer) for answer in await asyncio.gather(*asked)] == [2] * 7
        assert [len(engine.requests) for engine in engines] == [5, 2]
