"""The NATS store when its server goes, refuses, or cannot do what it needs."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import nats
import pytest
import structlog
from nats.js.api import DiscardPolicy, RetentionPolicy
from support.polling import DEADLINE_S, until
from support.servers.jetstream import JetStreamServer

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.runtime.kv_stores import (
    Entry,
    Listing,
    NatsAddress,
    NatsConnection,
    NatsStore,
    StoreError,
    nats_connection,
    nats_watch,
)
from dynamo_router.runtime.kv_stores.nats_messages import BucketSubjects
from dynamo_router.runtime.kv_stores.nats_store import NatsBucket

pytestmark = pytest.mark.usefixtures("leaves_nothing")


async def test_a_watch_goes_on_after_a_restart(jetstream: JetStreamServer) -> None:
    store = NatsStore(NatsAddress(jetstream.url))
    bucket = store.bucket("v1/x")
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
        waiting = asyncio.create_task(anext(watch))
        jetstream.kill()
        await jetstream.come_back()
        async with asyncio.timeout(DEADLINE_S):
            last = await bucket.put("b", b"2")
            change = await waiting
            assert isinstance(change, Listing) and change.entries[0].key == "a"
            if len(change.entries) == 1:
                assert await anext(watch) == Entry("b", b"2", last)
    await store.close()


async def test_a_nats_that_comes_back_without_its_data_is_written_again(
    jetstream: JetStreamServer,
) -> None:
    store = NatsStore(NatsAddress(jetstream.url))
    bucket = store.bucket("v1/x")
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
        waiting = asyncio.create_task(anext(watch))
        jetstream.kill()
        jetstream.lose_data()
        await jetstream.come_back()
        async with asyncio.timeout(DEADLINE_S):
            assert await bucket.get("a") is None
            await put_again(bucket, "b")
            change = await waiting
            if change == Listing((), 0):
                change = await anext(watch)
            assert "b" in str(change)
    await store.close()


async def test_a_bucket_whose_settings_were_changed_is_kept_as_it_is(
    jetstream: JetStreamServer,
) -> None:
    """Where it may be gone, as after a restart: by who runs NATS, more bytes or replicas."""
    store = NatsStore(NatsAddress(jetstream.url))
    bucket = store.bucket("v1/x")
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
        client = await nats.connect(jetstream.url)
        streams = client.jetstream()
        (info,) = await streams.streams_info()
        await streams.update_stream(info.config, max_bytes=1 << 20)
        await client.close()
        waiting = asyncio.create_task(anext(watch))
        jetstream.kill()
        await jetstream.come_back()
        async with asyncio.timeout(DEADLINE_S):
            await put_again(bucket, "b")
            assert "b" in str(await waiting)
    client = await nats.connect(jetstream.url)
    (info,) = await client.jetstream().streams_info()
    assert info.config.max_bytes == 1 << 20
    await client.close()
    await store.close()


async def test_a_process_takes_a_bucket_as_its_operator_has_changed_it(
    jetstream: JetStreamServer,
) -> None:
    """One that starts after the change, as a router that is restarted does."""
    before, after = (NatsStore(NatsAddress(jetstream.url)) for _ in range(2))
    await before.bucket("v1/x").put("a", b"1")
    client = await nats.connect(jetstream.url)
    streams = client.jetstream()
    (info,) = await streams.streams_info()
    await streams.update_stream(info.config, max_bytes=1 << 20)
    await client.close()
    bucket = after.bucket("v1/x")
    found = await bucket.get("a")
    assert found is not None and found.value == b"1"
    await bucket.put("b", b"2")
    await before.close()
    await after.close()


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"allow_msg_ttl": None, "subject_delete_marker_ttl": None}, "has no leases"),
        ({"subject_delete_marker_ttl": None}, "has no leases"),
        ({"subjects": ["$KV.other.>"]}, "is of $KV.other.>, not of"),
        ({"retention": RetentionPolicy.INTEREST}, "has retention interest, not limits"),
        ({"retention": RetentionPolicy.WORK_QUEUE}, "has retention workqueue, not limits"),
        ({"no_ack": True}, "acknowledges no write"),
        ({"max_age": 3600.0}, "forgets keys after 3600 s (max_age)"),
        (
            {"discard": DiscardPolicy.NEW, "discard_new_per_subject": True},
            "lets no key change",
        ),
    ],
)
async def test_a_stream_that_is_no_bucket_of_ours_is_refused_by_name(
    jetstream: JetStreamServer, changed: dict[str, Any], why: str
) -> None:
    client = await nats.connect(jetstream.url)
    config = BucketSubjects("v1/x").config().evolve(**changed)
    await client.jetstream().add_stream(config)
    await client.close()
    store = NatsStore(NatsAddress(jetstream.url))
    with pytest.raises(StoreError) as refused:
        await store.bucket("v1/x").put("a", b"1")
    assert f"the bucket v1/x {why}" in str(refused.value) and not refused.value.transient
    await store.close()


async def put_again(bucket: NatsBucket, key: str) -> None:
    """As what renews its lease does: until it works."""
    while True:
        try:
            await bucket.put(key, b"2")
            return
        except StoreError as error:
            assert error.transient


async def test_a_paused_nats_is_noticed_and_the_watch_goes_on(
    jetstream: JetStreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_watch, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(nats_watch, "_SILENCE_S", 0.9)
    monkeypatch.setattr(nats_connection, "_ATTEMPT_S", 0.3)
    store = NatsStore(NatsAddress(jetstream.url))
    bucket = store.bucket("v1/x")
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
        waiting = asyncio.create_task(anext(watch))
        jetstream.pause()
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any("lost NATS" in entry["event"] for entry in logs))
            with pytest.raises(StoreError) as caught:
                await bucket.put("b", b"1")
            assert caught.value.transient
            jetstream.resume()
            async with asyncio.timeout(DEADLINE_S):
                change = await waiting
        logged = [entry["event"] for entry in logs if entry["event"].startswith("a watch")]
        lost = "a watch lost NATS and goes on when it is back"
        assert logged == [lost, "a watch has NATS again"]  # not one for each attempt
        async with asyncio.timeout(DEADLINE_S):
            assert isinstance(change, Listing)
            last = await bucket.put("c", b"3")
            while change != Entry("c", b"3", last):
                change = await anext(watch)
    await store.close()


async def test_while_nats_is_away_calls_wait_for_it_but_not_for_ever(
    jetstream: JetStreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = NatsStore(NatsAddress(jetstream.url))
    bucket = store.bucket("v1/x")
    await bucket.put("a", b"1")
    jetstream.kill()
    writing = asyncio.create_task(bucket.put("a", b"2"))
    await jetstream.come_back()
    try:
        await writing
    except StoreError as error:  # it may have been on its way when the server went
        assert error.transient
    assert await bucket.put("a", b"3") > 1
    jetstream.kill()
    monkeypatch.setattr(nats_connection, "TIMEOUT_S", 0.2)
    with pytest.raises(StoreError, match=f"NATS at {jetstream.url}: ") as caught:
        while True:
            await bucket.put("a", b"4")
    assert caught.value.transient
    await store.close()


async def test_who_is_cancelled_as_the_answer_comes_is_cancelled(
    jetstream: JetStreamServer,
) -> None:
    connection = NatsConnection(NatsAddress(jetstream.url))
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def ask(_: object) -> None:
        asked.set()
        await asyncio.wait_for(answer, DEADLINE_S)  # as nats-py waits for each of its answers

    call = asyncio.create_task(connection.call(ask))
    await asked.wait()
    answer.set_result(None)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await connection.close()


async def test_a_server_without_jetstream_is_named() -> None:
    async with EmbeddedNats() as plain:
        store = NatsStore(NatsAddress(plain.url))
        with pytest.raises(StoreError, match="JetStream"):
            await store.bucket("v1/x").put("a", b"1")
        await store.close()


async def test_a_wrong_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    with JetStreamServer(tmp_path, "--user", "router", "--pass", "hush") as server:
        at = f"127.0.0.1:{server.port}"
        good = NatsStore(
            NatsAddress.from_environment(
                {
                    "NATS_SERVER": f"nats://{at}",
                    "NATS_AUTH_USERNAME": "router",
                    "NATS_AUTH_PASSWORD": "hush",
                }
            )
        )
        assert await good.bucket("v1/x").put("a", b"1") > 0
        await good.close()
        bad = NatsStore(NatsAddress(f"nats://router:guess@{at}"))
        with pytest.raises(StoreError, match="(?i)authorization") as caught:
            await bad.bucket("v1/x").put("a", b"1")
        assert not caught.value.transient and "guess" not in str(caught.value)
        await bad.close()


async def test_a_value_larger_than_nats_takes_is_refused_for_good(
    jetstream: JetStreamServer,
) -> None:
    store = NatsStore(NatsAddress(jetstream.url))
    with pytest.raises(StoreError, match="no message as large") as caught:
        await store.bucket("v1/x").put("a", b"x" * (2 << 20))
    assert not caught.value.transient
    await store.close()


def test_the_environment_names_the_server() -> None:
    assert NatsAddress.from_environment({}).url == "nats://127.0.0.1:4222"
    given = {"NATS_SERVER": "nats://a:1,b:2", "NATS_AUTH_TOKEN": "s/3"}
    assert NatsAddress.from_environment(given).url == "nats://s%2F3@a:1,nats://s%2F3@b:2"
    with pytest.raises(ConfigError, match="NATS_AUTH_USERNAME: needs NATS_AUTH_PASSWORD"):
        NatsAddress.from_environment({"NATS_AUTH_USERNAME": "u"})
