"""Faults on demand: what each does to a mock engine, that it ends when lifted, and their API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.mock_requests import request
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.mocker.fault_api import FaultApi
from dynamo_router.engines.mocker.faults import Fault, FaultyPlane
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.live import LiveEngine
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.workers.trtllm_proto import pb

ENGINE = EngineConfig(block_size=4, num_gpu_blocks=32)
# Else a channel shares the connection, and the patience, of one that met a crashed engine.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
EVENTS = "namespace.dynamo.component.backend.endpoint.generate.kv-events"


class House:
    """Two engines, what they publish, and the fault API."""

    def __init__(self, fleet: MockFleet, api: FaultApi, session: aiohttp.ClientSession) -> None:
        self.fleet, self._api, self._session = fleet, api, session
        self.event_ids: list[int] = []

    async def ask(self, number: int, tokens: Any, max_tokens: int = 3) -> list[int]:
        address = self.fleet.addresses[number]
        async with aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            tokenized = pb.TokenizedInput(input_token_ids=list(tokens))
            call = TrtllmServiceStub(channel).Generate(
                pb.GenerateRequest(request_id="a", tokenized=tokenized, max_tokens=max_tokens)
            )
            (whole,) = await messages_of(call)
            return list(whole.complete.output_token_ids)

    async def call(self, method: str, path: str, body: str = "") -> tuple[int, Any]:
        url = f"http://{self._api.address}{path}"
        async with self._session.request(method, url, data=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def fault(self, number: object, body: str) -> Any:
        status, said = await self.call("PUT", f"/engines/{number}/fault", body)
        assert status == 200, said
        return said


@pytest.fixture
async def house() -> AsyncIterator[House]:
    plane = LocalPlane()
    config = MockerConfig(port=0, workers=2, speedup_ratio=1e6, engine=ENGINE)
    async with MockFleet(config, plane=plane) as fleet, aiohttp.ClientSession() as session:
        api = FaultApi(fleet.engines)
        await api.start("127.0.0.1", 0)
        made = House(fleet, api, session)

        def on_message(_: str, payload: bytes) -> None:
            events = decode_event_message(payload)
            made.event_ids += [e.event_id for e in events if e.worker[0] == fleet.worker_ids[0]]

        await plane.subscribe(EVENTS, on_message)
        yield made
        await api.close()
    await plane.close()


@asynccontextmanager
async def refused(code: grpc.StatusCode) -> AsyncIterator[None]:
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code


async def test_steps_of_a_slow_engine_take_longer_and_then_as_before():
    clock, slept = ManualClock(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)
        await asyncio.sleep(0)

    live = LiveEngine(MockEngine(ENGINE), clock=clock, sleep=sleep)
    live.start()

    async def seconds() -> float:
        slept.clear()
        stream = live.submit(request("a", range(8), 5))
        while not stream.done:
            await stream.wait(stream.ready)
        return sum(slept)

    await seconds()  # from here on the prompt is cached
    usual = await seconds()
    live.slowdown = 3.0
    slow = await seconds()
    live.slowdown = 1.0
    again = await seconds()
    await live.stop()
    assert slow == pytest.approx(3 * usual) and again == pytest.approx(usual)


async def test_an_engine_that_hangs_answers_nothing_and_then_everything(house):
    await house.fault(0, '{"hang": true}')
    asked = asyncio.create_task(house.ask(0, range(8)))
    async with aio.insecure_channel(house.fleet.addresses[0]) as channel:
        async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            await TrtllmServiceStub(channel).HealthCheck(pb.HealthCheckRequest(), timeout=0.05)
    assert len(await house.ask(1, range(8))) == 3, "the other engine is well"
    assert not asked.done()
    status, _ = await house.call("DELETE", "/engines/0/fault")
    assert status == 200
    assert len(await asked) == 3


async def test_a_request_that_runs_when_the_engine_hangs_goes_on_afterwards(house):
    config = MockerConfig(port=0, speedup_ratio=4, engine=ENGINE)
    async with MockFleet(config) as fleet:
        server = fleet.engines[0]
        stream = server.ranks.submit(request("a", range(8), 20), None)
        await stream.wait(2)
        await server.set_fault(Fault(hang=True))
        seen = stream.ready
        for _ in range(20):
            await asyncio.sleep(0)
        assert stream.ready == seen and not stream.done
        await server.set_fault(Fault())
        async with asyncio.timeout(60):
            while not stream.done:
                await stream.wait(stream.ready)
        assert stream.ready == 20 and not stream.aborted


async def test_an_engine_fails_requests_as_it_is_told_and_is_well_otherwise(house):
    await house.fault(0, '{"fail": "DATA_LOSS"}')
    async with refused(grpc.StatusCode.DATA_LOSS):
        await house.ask(0, range(8))
    await house.fault(0, '{"fail": "OK"}')
    with pytest.raises(ValueError, match="not enough values"):  # no message came
        await house.ask(0, range(8))
    async with aio.insecure_channel(house.fleet.addresses[0]) as channel:
        healthy = await TrtllmServiceStub(channel).HealthCheck(pb.HealthCheckRequest())
    assert healthy.status == "OK"
    await house.fault(0, "")
    assert len(await house.ask(0, range(8))) == 3


async def test_a_crashed_engine_comes_back_empty_on_its_old_port(house):
    await house.ask(0, range(12))
    address, worker_id = house.fleet.addresses[0], house.fleet.worker_ids[0]
    await house.fault(0, '{"crash": true}')
    async with refused(grpc.StatusCode.UNAVAILABLE):
        await house.ask(0, range(12))
    await house.fault(0, "")
    assert (house.fleet.addresses[0], house.fleet.worker_ids[0]) == (address, worker_id)
    assert not list(house.fleet.engines[0].engine.cached_blocks())
    house.event_ids.clear()
    assert len(await house.ask(0, range(12))) == 3
    await until(lambda: house.event_ids)
    assert house.event_ids[0] == 1


async def test_a_crashed_engine_whose_port_was_taken_says_so(house):
    port = int(house.fleet.addresses[0].rpartition(":")[2])
    await house.fault(0, '{"crash": true}')
    thief = MockFleet(MockerConfig(port=port, engine=ENGINE))
    await thief.start()
    status, said = await house.call("DELETE", "/engines/0/fault")
    assert status == 409 and f"127.0.0.1:{port}: Address already in use" in said["error"]
    await thief.stop()
    status, _ = await house.call("DELETE", "/engines/0/fault")
    assert status == 200
    assert len(await house.ask(0, range(8))) == 3


@pytest.mark.parametrize(("body", "first"), [("", 0), ('{"first_event_id": 7}', 7)])
async def test_a_restart_in_place_numbers_events_anew(house, body, first):
    for start in (0, 100, 200):
        await house.ask(0, range(start, start + 12))
    await until(lambda: house.event_ids and house.event_ids[-1] >= 3)
    status, said = await house.call("POST", "/engines/0/restart", body)
    assert status == 200 and said[0]["fault"] == said[0]["fault"] | {"crash": False}
    house.event_ids.clear()
    await house.ask(0, range(12))
    await until(lambda: house.event_ids)
    assert house.event_ids[0] == first


async def published(fault: Fault, messages: int = 200) -> list[int]:
    """The numbers of the messages that come out, in order."""
    inner = LocalPlane()
    out: list[int] = []
    await inner.subscribe("a.b", lambda _, payload: out.append(int(payload)))
    plane = FaultyPlane(inner)
    await plane.set_fault(fault)
    for number in range(messages):
        await plane.publish("a.b", b"%d" % number)
    await plane.close()
    await until(lambda: out[-1:] and max(out) >= messages - 1 or fault.drop)
    await inner.flush()
    await inner.close()
    return out


async def test_messages_are_dropped_doubled_and_swapped_as_the_seed_says():
    everything = list(range(200))
    assert await published(Fault()) == everything
    dropped = await published(Fault(drop=0.3, seed=1))
    assert 100 < len(dropped) < 180 and dropped == sorted(set(dropped))
    assert dropped == await published(Fault(drop=0.3, seed=1))
    assert dropped != await published(Fault(drop=0.3, seed=2))
    doubled = await published(Fault(duplicate=0.3, seed=1))
    assert sorted(set(doubled)) == everything and 220 < len(doubled) < 300
    swapped = await published(Fault(reorder=0.3, seed=1))
    assert sorted(swapped) == everything != swapped
    assert all(abs(place - number) <= 2 for place, number in enumerate(swapped))
    assert await published(Fault(reorder=1.0), 4) == [1, 0, 3, 2]
    both = await published(Fault(drop=0.3, duplicate=0.5, seed=1))
    assert sorted(set(both)) == dropped, "one share does not move the choices of another"


async def test_a_message_kept_back_is_let_go_when_the_fault_is_lifted():
    inner = LocalPlane()
    out: list[bytes] = []
    await inner.subscribe("a.b", lambda _, payload: out.append(payload))
    plane = FaultyPlane(inner)
    await plane.set_fault(Fault(reorder=1.0))
    await plane.publish("a.b", b"late")
    await inner.flush()
    assert out == []
    await plane.set_fault(Fault())
    await until(lambda: out == [b"late"])
    await inner.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/engines/0/fault", '{"drop": 1.5}', 400, "<= 1.0 - at `$.drop`"),
        ("/engines/0/fault", '{"slow": 0}', 400, "> 0.0 - at `$.slow`"),
        ("/engines/0/fault", '{"hang": "yes"}', 400, "Expected `bool`, got `str` - at `$.hang`"),
        ("/engines/0/fault", '{"freeze": true}', 400, "unknown field `freeze`"),
        ("/engines/0/fault", "{", 400, "Input data was truncated"),
        ("/engines/2/fault", "", 404, "there is no engine 2: 0..1, or all"),
        ("/engines/-1/fault", "", 404, "there is no engine -1"),
    ],
)
async def test_a_fault_that_is_none_changes_nothing_and_says_why(house, path, body, status, text):
    answer, said = await house.call("PUT", path, body)
    assert answer == status and text in said["error"]
    assert all(engine.fault == Fault() for engine in house.fleet.engines)
    answer, said = await house.call("POST", "/engines/0/restart", '{"first_event_id": -1}')
    assert answer == 400 and "$.first_event_id" in said["error"]


async def test_the_door_shows_every_engine_and_what_is_wrong_with_it(house):
    said = await house.fault("all", '{"slow": 2, "drop": 0.1}')
    assert [row["engine"] for row in said] == [0, 1]
    status, rows = await house.call("GET", "/engines")
    assert status == 200
    assert [row["address"] for row in rows] == house.fleet.addresses
    assert {row["fault"]["slow"] for row in rows} == {2.0}
    await house.call("DELETE", "/engines/all/fault")
    _, rows = await house.call("GET", "/engines")
    assert {row["fault"]["slow"] for row in rows} == {1.0}


async def test_a_door_whose_port_is_in_use_names_the_setting(house):
    port = int(house._api.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"fault_port: cannot listen on 127.0.0.1:{port}"):
        await FaultApi(house.fleet.engines).start("127.0.0.1", port)
