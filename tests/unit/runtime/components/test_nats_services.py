"""What is served over NATS, as NATS's service protocol shows it (ADR-32).

NATS's own service of nats-py answers beside ours, and what ours answer is read by its types.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats.micro
import pytest
from nats.aio.client import Client as NatsClient
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import MemoryStore, NatsAddress
from dynamo_router.runtime.request_planes import RequestContext, RequestError

pytestmark = [
    pytest.mark.usefixtures("leaves_nothing"),
    # Of nats-py's own service, since Python 3.12.
    pytest.mark.filterwarnings(r"ignore:datetime.datetime.utcnow:DeprecationWarning:nats\.micro"),
]
NAME = "dynamo.backend.generate"


@pytest.fixture
async def client(jetstream: JetStreamServer) -> AsyncIterator[NatsClient]:
    connected = await nats.connect(jetstream.url)
    yield connected
    await connected.close()


async def count(body: Any, context: RequestContext) -> AsyncIterator[object]:
    for number in range(body["n"]):
        yield number


def worker(jetstream: JetStreamServer, store: MemoryStore, **more: Any) -> DistributedRuntime:
    runtime = DistributedRuntime(
        store, nats=NatsAddress(jetstream.url), request_plane="nats", **more
    )
    runtime.endpoint(NAME)(count)
    return runtime


async def ask(client: NatsClient, subject: str, expected: int, data: bytes = b"") -> list[Any]:
    """So many answers to a question of all who listen."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(subject, data, reply=inbox)
    answers = [json.loads((await subscription.next_msg(30)).data) for _ in range(expected)]
    await client.flush()
    assert not subscription.pending_msgs
    await subscription.unsubscribe()
    return answers


async def test_a_component_answers_beside_a_service_of_nats_own(
    jetstream: JetStreamServer, client: NatsClient
) -> None:
    theirs = await nats.micro.add_service(client, name="theirs", version="1.2.3")
    store = MemoryStore()
    async with theirs, worker(jetstream, store) as one, worker(jetstream, store) as other:
        await one.namespace("dynamo").component("empty").create_service()
        (named,) = [a for a in await ask(client, "$SRV.PING", 4) if a["name"] == "theirs"]
        ours = await ask(client, "$SRV.PING.dynamo_backend", 2)
        for each in ours:
            assert each.keys() == named.keys()
            assert ServicePing.from_dict(each).type == "io.nats.micro.v1.ping_response"
        assert len({each["id"] for each in ours}) == 2
        subjects = {f"dynamo_backend.generate-{r.instance_id:x}" for r in (one, other)}
        told = await ask(client, "$SRV.INFO.dynamo_backend", 2)
        info = [ServiceInfo.from_dict(each) for each in told]
        assert {each["type"] for each in told} == {"io.nats.micro.v1.info_response"}
        assert {each.endpoints[0].subject for each in info} == subjects
        assert {each.endpoints[0].queue_group for each in info} == {"q"}
        (first,) = [each for each in info if f"{one.instance_id:x}" in each.endpoints[0].name]
        for verb in ("PING", "INFO", "STATS"):
            (answer,) = await ask(client, f"$SRV.{verb}.dynamo_backend.{first.id}", 1)
            assert answer["id"] == first.id


async def test_stats_count_requests_their_time_and_what_failed(
    jetstream: JetStreamServer, client: NatsClient
) -> None:
    store = MemoryStore()
    async with worker(jetstream, store, capacity=1) as running:
        caller = DistributedRuntime(store, nats=NatsAddress(jetstream.url))

        async def stats() -> ServiceStats:
            (answer,) = await ask(client, "$SRV.STATS.dynamo_backend", 1)
            assert answer["type"] == "io.nats.micro.v1.stats_response"
            return ServiceStats.from_dict(answer)

        async with caller:
            calls = await caller.client(NAME)
            await until(lambda: calls.instances)
            assert [part async for part in calls.random({"n": 3})] == [0, 1, 2]
            (endpoint,) = (await stats()).endpoints
            assert (endpoint.num_requests, endpoint.num_errors) == (1, 0)
            assert endpoint.name == f"generate-{running.instance_id:x}"
            assert endpoint.average_processing_time == endpoint.processing_time > 0
            with pytest.raises(RequestError):
                [part async for part in calls.random({"no": "n"})]
            (endpoint,) = (await stats()).endpoints
            assert (endpoint.num_requests, endpoint.num_errors) == (2, 1)
            assert endpoint.last_error == "KeyError: 'n'"
        # A request that is none is refused, and counted too; a secret of its is not repeated.
        subject = f"dynamo_backend.generate-{running.instance_id:x}"
        reply = await client.request(subject, b"junk", timeout=30)
        assert reply.data
        (endpoint,) = (await stats()).endpoints
        assert (endpoint.num_requests, endpoint.num_errors) == (3, 2)
        assert len(endpoint.last_error or "") <= 200


async def test_junk_is_answered_as_nats_own_service_does_or_not_at_all(
    jetstream: JetStreamServer, client: NatsClient
) -> None:
    theirs = await nats.micro.add_service(client, name="theirs", version="1.2.3")
    async with worker(jetstream, MemoryStore()), theirs:
        for data in (b"\xff" * 1000, b"{", b"x" * 100_000):
            for verb in ("PING", "INFO", "STATS"):
                assert len(await ask(client, f"$SRV.{verb}", 2, data)) == 2
        for nobody in ("$SRV.EXEC", "$SRV.ping", "$SRV.PING.nobody", "$SRV.PING.dynamo_backend.no",
                       "$SRV", "$SRV.PING.dynamo_backend.no.more"):  # fmt: skip
            with pytest.raises(NoRespondersError):
                await client.request(nobody, b"", timeout=30)
        await client.publish("$SRV.PING")  # to which no answer can come
        assert len(await ask(client, "$SRV.PING", 2)) == 2


async def test_a_service_is_back_after_nats_was_away_and_gone_with_its_runtime(
    jetstream: JetStreamServer,
) -> None:
    running = worker(jetstream, MemoryStore())
    await running.start()
    jetstream.kill()
    await jetstream.come_back()
    connected = await nats.connect(jetstream.url)

    async def pinged() -> bool:
        try:
            await connected.request("$SRV.PING.dynamo_backend", b"", timeout=5)
        except (NoRespondersError, NatsTimeoutError):  # one may be lost on the way
            return False
        return True

    await until(pinged, 60.0)
    await running.shutdown()
    await until(lambda: _not(pinged()), 60.0)
    await connected.close()


async def _not(answer: Any) -> bool:
    return not await answer


async def test_a_runtime_without_nats_has_no_service() -> None:
    async with DistributedRuntime(MemoryStore()) as runtime:
        with pytest.raises(ConfigError, match="needs the address of NATS"):
            await runtime.namespace("a").component("b").create_service()


async def test_names_that_the_protocol_does_not_allow_are_written_otherwise(
    jetstream: JetStreamServer, client: NatsClient
) -> None:
    runtime = DistributedRuntime(MemoryStore(), nats=NatsAddress(jetstream.url))
    async with runtime:
        for component in ("*", "é>", "b_c"):
            service = await runtime.namespace("a").component(component).create_service()
            assert await runtime.namespace("a").component(component).create_service() is service
        # Two of one name are two services.
        await runtime.namespace("a_b").component("c").create_service()
        names = sorted(each["name"] for each in await ask(client, "$SRV.PING", 4))
        assert names == ["a_-", "a_--", "a_b_c", "a_b_c"]
        assert await asyncio.gather(*(ask(client, f"$SRV.INFO.{n}", 1) for n in names[:2]))
        (info, twin) = await ask(client, "$SRV.INFO.a_b_c", 2)
        assert info["endpoints"] == twin["endpoints"] == [] and info["id"] != twin["id"]
