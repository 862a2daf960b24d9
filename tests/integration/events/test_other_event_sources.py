"""Engines that tell their events over ZMQ or HTTP, behind a whole server."""

from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.kv_events.drained_engine import DrainedEngine
from support.kv_events.drained_engine import stored as drained_stored
from support.kv_events.engine_events import stored
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.kv_events.event_sources import EventSources
from dynamo_router.kv_events.source_choice import SourceChoice
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.health_tracker import HealthPolicy

TOLD = KvRouterConfig(block_size=BLOCK, seed=1)
PROMPT = list(range(1, 3 * BLOCK + 1))


async def row(ports: Ports) -> Any:
    _, answer = await ports.http("GET", "/workers")
    [found] = answer["workers"]
    return found["event_source"], found["event_source_state"], found["indexed_blocks"]


async def has_source(ports: Ports, wanted: str) -> None:
    async def right() -> bool:
        return bool((await row(ports))[0] == wanted)

    await until(right)


async def is_row(ports: Ports, *wanted: object) -> None:
    async def right() -> bool:
        return bool(await row(ports) == wanted)

    await until(right)


async def test_events_over_zmq() -> None:
    from support.kv_events.zmq_publisher import ZmqPublisher

    async with ZmqPublisher() as publisher, FakeEngine() as engine:
        await publisher.publish(stored([1, 2], PROMPT[: 2 * BLOCK], BLOCK))
        url = f"{engine.url}?events={publisher.url}&replay={publisher.replay_url}"
        async with serving(workers=(url,), router=TOLD, event_sources="zmq") as ports:
            await is_row(ports, "zmq", "exact", 2)
            await publisher.publish(stored([3], PROMPT[2 * BLOCK :], BLOCK, parent=2))
            await is_row(ports, "zmq", "exact", 3)
            assert list(ports.server.router.overlaps(PROMPT).values()) == [3]


async def test_a_refused_source_is_tried_again_when_its_engine_comes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.kv_events.zmq_publisher import ZmqPublisher

    away: list[SourceChoice] = []  # whose worker was well, and was seen to be so no more
    look = EventSources.look

    def looked(sources: EventSources, *seen: Any) -> None:
        look(sources, *seen)
        away.extend(each.choice for each in sources._workers.values() if not each.well)

    monkeypatch.setattr(EventSources, "look", looked)
    eager = HealthPolicy(probe_interval_s=0.05, retry_first_s=0.05, retry_most_s=0.1)
    async with ZmqPublisher() as publisher, FakeEngine() as engine:
        await publisher.publish(stored([1], PROMPT[:BLOCK], BLOCK))
        url = f"{engine.url}?events={publisher.url}&replay={publisher.replay_url}"
        config = {"workers": (url,), "router": TOLD, "event_sources": "zmq", "health": eager}
        async with serving(**config) as ports:
            await is_row(ports, "zmq", "exact", 1)
            await publisher.publish(stored([2], PROMPT[: 2 * BLOCK], 2 * BLOCK))
            await has_source(ports, "predicted")
            engine.status = "not now"
            publisher.begin_anew()
            await publisher.publish(stored([1, 2], PROMPT[: 2 * BLOCK], BLOCK))
            await until(lambda: away)
            engine.status = "OK"
            await is_row(ports, "zmq", "exact", 2)
    said = capsys.readouterr().out
    assert f"blocks of {2 * BLOCK} tokens, the router's have {BLOCK}" in said


async def test_events_over_http() -> None:
    drained = DrainedEngine()
    drained.happen(drained_stored(9, PROMPT[:BLOCK]))
    await drained.start()
    try:
        async with FakeEngine() as engine:
            url = f"{engine.url}?events={drained.url}"
            async with serving(workers=(url,), router=TOLD, event_sources="http") as ports:
                await is_row(ports, "http", "exact", 1)
    finally:
        await drained.stop()
