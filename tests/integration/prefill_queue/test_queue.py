"""The prefill queue over a real NATS: where prompts are computed, and which cannot be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError
from support.engines.queue_rig import BLOCK, BLOCKS, DecodeEnd, PrefillEnd, hashes_of
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.engines.prefill_queue import (
    PrefillQueueConfig,
    QueuedPrompt,
    QueueNames,
    RemotePrefillError,
)
from dynamo_router.engines.prefill_queue import consumer as prefill_consumer
from dynamo_router.engines.transfer import ArenaLayout
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection, StoreError

FAST: dict[str, Any] = {"prefill_queue_ack_wait_s": 0.6, "prefill_queue_timeout_s": 10.0}


class Fleet:
    """Ends of one queue, closed with it."""

    def __init__(self, url: str, folder: Path, stack: AsyncExitStack, namespace: str) -> None:
        self._url, self._folder, self._stack = url, folder, stack
        self.namespace = namespace
        self.config = PrefillQueueConfig(**FAST)

    async def decode(self, **more: Any) -> DecodeEnd:
        end = DecodeEnd(self._url, self._folder, self.config, self.namespace, **more)
        self._stack.push_async_callback(end.close)
        return await end.ready()

    async def prefill(self, **more: Any) -> PrefillEnd:
        end = PrefillEnd(self._url, self._folder, self.config, self.namespace, **more)
        self._stack.push_async_callback(end.close)
        return await end.ready()


@pytest.fixture
async def fleet(
    nats: JetStreamServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(nats.url, tmp_path, stack, request.node.name)


def prompt(tokens: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 1000, tokens, dtype=np.uint32)


async def test_a_prompt_is_computed_by_a_prefill_worker_and_lands(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    assert await decode.request(prompt(5 * BLOCK + 3)) == "remote"
    assert (prefill.computed, decode.corrupt, decode.checked) == (1, 0, 6)
    await until(lambda: is_empty(decode))


async def test_blocks_that_the_decode_worker_has_are_not_written(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    assert await decode.request(prompt(6 * BLOCK), cached=4) == "remote"
    assert (prefill.computed, decode.corrupt) == (1, 0)


async def is_empty(end: DecodeEnd) -> bool:
    return await end.prefills.queued() == 0


async def test_without_a_prefill_worker_the_deadline_ends_the_wait(fleet: Fleet) -> None:
    fleet.config = PrefillQueueConfig(prefill_queue_timeout_s=0.3)
    decode = await fleet.decode()
    assert await decode.request(prompt(4 * BLOCK)) == "deadline"
    await until(lambda: is_empty(decode))  # nothing is computed for nothing
    assert decode.transfer.grants.free_blocks == BLOCKS


async def test_a_dead_prefill_workers_prompt_goes_to_another(fleet: Fleet) -> None:
    decode, first = await fleet.decode(), await fleet.prefill(worker_id=1)
    first.awake.clear()
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: first.consumer.active)
    second = await fleet.prefill(worker_id=2)
    await first.kill()
    assert await request == "remote"
    assert (second.computed, second.metrics.redelivered, decode.corrupt) == (1, 1, 0)


async def test_what_a_worker_thought_dead_writes_is_refused(fleet: Fleet) -> None:
    fleet.config = PrefillQueueConfig(prefill_queue_slots=1, **FAST)
    decode, slow = await fleet.decode(), await fleet.prefill(worker_id=1)
    slow.awake.clear()
    slow.consumer._config = PrefillQueueConfig(prefill_queue_ack_wait_s=600.0)  # it gives no sign
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: slow.consumer.active)
    other = await fleet.prefill(worker_id=2)
    assert await request == "remote"
    later = decode.transfer.grants.allocate(BLOCKS)  # the same blocks, among them, for others
    decode.transfer.arena.fill(later, list(range(BLOCKS)))
    slow.awake.set()
    await until(lambda: slow.consumer.active == 0)
    assert (slow.computed, other.computed) == (1, 1)
    assert not decode.transfer.arena.wrong(later, list(range(BLOCKS)))
    decode.transfer.grants.free(later)


async def test_an_attempt_that_is_given_up_is_computed_no_further(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    prefill.awake.clear()
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: prefill.consumer.active)
    request.cancel()
    await asyncio.wait([request])
    await until(lambda: prefill.consumer.active == 0)
    assert prefill.computed == 0
    await until(lambda: is_empty(decode))
    assert decode.transfer.grants.free_blocks == BLOCKS
    assert prefill.transfer.grants.free_blocks == BLOCKS


async def test_a_prompt_is_begun_before_its_decode_worker_has_answered(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    prefill.awake.clear()
    begun: list[Any] = []
    prefill.consumer.on_begun.append(begun.append)
    take, may_answer = decode.prefills._take, asyncio.Event()

    async def answer_late(*asked: Any) -> Any:
        await may_answer.wait()
        return await take(*asked)

    decode.prefills._take = answer_late  # type: ignore[method-assign]
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: begun)
    prefill.awake.set()
    await until(lambda: prefill.computed)
    assert not request.done() and not decode.transfer.grants.open_attempts
    may_answer.set()
    assert await request == "remote"
    assert (decode.corrupt, decode.checked) == (0, 4)


async def test_a_write_has_what_is_left_of_its_decode_engines_patience(fleet: Fleet) -> None:
    """However long the prompt was computed since that engine was asked."""
    decode, prefill = await fleet.decode(), await fleet.prefill()
    prefill.awake.clear()
    write, given = prefill.transfer.write, []

    def watched(*args: Any, **more: Any) -> Any:
        given.append(more["deadline_s"])
        return write(*args, **more)

    prefill.transfer.write = watched  # type: ignore[method-assign]
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: decode.transfer.grants.open_attempts)
    asked_at = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() > asked_at + 0.3)
    prefill.awake.set()
    assert await request == "remote"
    assert given[0] <= FAST["prefill_queue_timeout_s"] - 0.3


async def test_what_is_over_when_it_is_begun_is_computed_no_further(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    prefill.awake.clear()
    await publish(decode, message(decode))  # no attempt of it
    await until(lambda: is_empty(decode))
    await until(lambda: prefill.consumer.active == 0)
    assert prefill.computed == 0 and prefill.transfer.grants.free_blocks == BLOCKS


async def test_a_prompt_that_none_can_take_out_leaves_the_queue_by_its_deadline(
    fleet: Fleet,
) -> None:
    """It is for a worker that is gone, and NATS' answer, which tells its number, was lost."""
    fleet.config = PrefillQueueConfig(prefill_queue_timeout_s=3.0)
    decode = await fleet.decode()
    publish = decode.link.queue.publish

    async def unanswered(*message: Any, **more: Any) -> Any:
        await publish(*message, **more)
        raise StoreError("no answer")

    decode.link.queue.publish = unanswered  # type: ignore[method-assign]
    assert await decode.request(prompt(4 * BLOCK), worker_id=9) == "away"
    assert not await is_empty(decode)
    await until(lambda: is_empty(decode))


@pytest.mark.parametrize("allows", [False, True])
async def test_a_stream_that_an_operator_has_made_may_know_no_deadlines(
    fleet: Fleet, allows: bool
) -> None:
    names = QueueNames.of(fleet.namespace, "model", "pool")
    connection = NatsConnection(NatsAddress(fleet._url))
    fleet._stack.push_async_callback(connection.close)
    config = names.settings(fleet.config).config().evolve(allow_msg_ttl=allows)
    await connection.call(lambda js: js.add_stream(config))
    decode, _ = await fleet.decode(), await fleet.prefill()
    assert await decode.request(prompt(4 * BLOCK)) == "remote"


async def test_a_full_queue_is_the_decode_workers_own_to_compute(fleet: Fleet) -> None:
    fleet.config = PrefillQueueConfig(prefill_queue_max_messages=1)
    decode = await fleet.decode()
    waiting = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: decode.prefills.queued())
    assert await decode.request(prompt(4 * BLOCK, 1)) == "full"
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_message_that_nats_does_not_take_is_computed_locally(fleet: Fleet) -> None:
    decode = await fleet.decode()
    large = np.zeros(400_000, np.uint32)  # 2 MB in base64
    text = QueuedPrompt("r", large, 8192, [0] * 49, [], [0] * 49)
    decode.transfer.grants.allocate(1)
    with pytest.raises(RemotePrefillError, match=r"bytes are more than 1048576") as failure:
        await decode.prefills.prefill(text)
    assert failure.value.reason == "large"


async def test_a_draining_worker_gives_its_prompts_to_others(fleet: Fleet) -> None:
    decode, first = await fleet.decode(), await fleet.prefill(worker_id=1)
    first.awake.clear()
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: first.consumer.active)
    second = await fleet.prefill(worker_id=2)
    await first.close()
    assert await request == "remote"
    assert second.computed == 1


async def test_a_prompt_for_one_worker_goes_there_and_to_all_if_that_is_gone(fleet: Fleet) -> None:
    decode = await fleet.decode()
    others = [await fleet.prefill(worker_id=each) for each in (1, 2, 3)]
    for _ in range(4):
        assert await decode.request(prompt(4 * BLOCK), worker_id=3) == "remote"
    assert [each.computed for each in others] == [0, 0, 4]
    await others[2].kill()
    assert await decode.request(prompt(4 * BLOCK), worker_id=3) == "remote"
    assert sum(each.computed for each in others[:2]) == 1


async def publish(decode: DecodeEnd, body: bytes) -> None:
    names = decode.link.names
    await decode.link.queue.publish(names.queue, body, str(hash(body)))


async def dead_letters(decode: DecodeEnd) -> list[str]:
    """Their reasons."""
    js = (await decode.link.connection.link()).jetstream(2.0)
    name = decode.link.names.dead
    try:
        info = await js.stream_info(name)
    except NotFoundError:
        return []
    found = [await js.get_msg(name, each + 1) for each in range(info.state.messages)]
    return [(each.headers or {})["Dyn-Reason"] for each in found]


def message(decode: DecodeEnd, **changed: Any) -> bytes:
    tokens = prompt(2 * BLOCK)
    plain: dict[str, Any] = {
        "v": 1, "request_id": "r", "attempt": "a" * 32, "engine_id": decode.transfer.engine_id,
        "model": "model", "pool": "", "block_size": BLOCK, "block_ids": [0, 1],
        "block_hashes": [f"{each:x}" for each in hashes_of(tokens)],
        "kv_layout": {"tp": 1, "layers": 2, "bytes_per_block": 2048},
        "prompt_token_ids": tokens.tolist(),
    }  # fmt: skip
    return msgspec.json.encode(plain | changed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"v": 2}, "version"),
        ({"v": "one"}, "unreadable"),
        ({"engine_id": "00000000-00000000"}, "unknown"),
        ({"block_ids": [0]}, "mismatch"),
        ({"computed_block_ids": [7]}, "mismatch"),
        ({"block_hashes": ["x", "y"]}, "unreadable"),
        ({"prompt_token_ids": [], "prompt_tokens_b64": "?"}, "unreadable"),
        ({"block_size": 0}, "mismatch"),
        ({"model": "another"}, "mismatch"),
    ],
)
async def test_what_no_worker_can_do_is_a_dead_letter(
    fleet: Fleet, changed: dict[str, Any], reason: str
) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    await publish(decode, message(decode, **changed))
    await until(lambda: prefill.metrics.dead_letters)
    await until(lambda: is_empty(decode))
    assert await dead_letters(decode) == [reason]
    assert await decode.request(prompt(BLOCK)) == "remote"  # and the worker goes on


async def test_unknown_fields_are_passed_over_and_an_old_attempt_is_over(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    await publish(decode, message(decode, colour="blue"))
    await until(lambda: is_empty(decode))
    assert prefill.metrics.dead_letters == 0


@pytest.mark.parametrize("kind", ["none", "unreadable", "dead", "another"])
async def test_metadata_of_no_use_in_the_store_do_no_harm(fleet: Fleet, kind: str) -> None:
    """The decode worker's own word counts then."""
    gone, other, decode = [await fleet.decode() for _ in range(3)]
    dead = gone.transfer.export()
    await gone.close()
    stored = {"none": None, "unreadable": b"{", "dead": dead, "another": other.transfer.export()}
    looked_up: list[str] = []

    async def find(engine_id: str) -> bytes | None:
        looked_up.append(engine_id)
        return stored[kind]

    await fleet.prefill(find_metadata=find)
    for seed in range(2):  # what is of no use is not remembered
        assert await decode.request(prompt(4 * BLOCK, seed)) == "remote"
        assert looked_up == [decode.transfer.engine_id] * (seed + 1)
    assert (decode.corrupt, other.transfer.grants.free_blocks) == (0, BLOCKS)


async def test_the_store_is_asked_once_for_an_engine(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_consumer, "_MOST_KNOWN", 1)
    decodes = [await fleet.decode() for _ in range(2)]
    stored = {each.transfer.engine_id: each.transfer.export() for each in decodes}
    looked_up: list[str] = []

    async def find(engine_id: str) -> bytes | None:
        looked_up.append(engine_id)
        return stored[engine_id]

    await fleet.prefill(find_metadata=find)
    for number in (0, 0, 1, 1, 0):  # as many as may be known
        assert await decodes[number].request(prompt(4 * BLOCK, len(looked_up))) == "remote"
    assert looked_up == [decodes[number].transfer.engine_id for number in (0, 1, 0)]


async def test_blocks_that_do_not_fit_are_a_dead_letter_and_computed_locally(fleet: Fleet) -> None:
    decode = await fleet.decode()
    prefill = await fleet.prefill(layout=ArenaLayout(bytes_per_block=4096, layers=2, heads=2))
    assert await decode.request(prompt(4 * BLOCK)) == "failed"
    assert prefill.metrics.dead_letters == 1 and decode.corrupt == 0
    assert await dead_letters(decode) == ["mismatch"]
    await until(lambda: is_empty(decode))
    assert not decode.transfer.grants.open_attempts


async def test_a_message_of_2_mb_is_a_dead_letter(tmp_path: Path) -> None:
    """Of another program, where the operator lets NATS take such."""
    settings = tmp_path / "nats.conf"
    settings.write_text("max_payload: 4MB\n")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(JetStreamServer(tmp_path / "own", "--config", str(settings)))
        fleet = Fleet(server.url, tmp_path, stack, "large")
        decode, prefill = await fleet.decode(), await fleet.prefill()
        await publish(decode, message(decode, prompt_token_ids=[7] * 1_000_000))
        await publish(decode, b"[" * 2_000_000)
        await until(lambda: prefill.metrics.dead_letters == 2)
        await until(lambda: is_empty(decode))
        assert sorted(await dead_letters(decode)) == ["mismatch", "unreadable"]
        assert await decode.request(prompt(BLOCK)) == "remote"


async def test_what_is_delivered_too_often_is_a_dead_letter_and_counts_no_more(
    fleet: Fleet,
) -> None:
    fleet.config = PrefillQueueConfig(prefill_queue_max_deliver=1, **FAST)
    decode, first = await fleet.decode(), await fleet.prefill(worker_id=1)
    first.awake.clear()
    request = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
    await until(lambda: first.consumer.active)
    watcher = await fleet.prefill(worker_id=2)
    await first.kill()
    assert await request == "failed"  # long before its deadline
    assert watcher.metrics.dead_letters == 1
    assert await dead_letters(decode) == ["exhausted"]
    await until(lambda: is_empty(decode))


async def test_a_stream_of_another_retention_is_no_queue(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    decode = await fleet.decode()
    js = (await decode.link.connection.link()).jetstream(2.0)
    names = decode.link.names
    await decode.close()
    other = DecodeEnd(fleet._url, fleet._folder, fleet.config, fleet.namespace + "x")
    fleet._stack.push_async_callback(other.close)
    await other.ready()
    js = (await other.link.connection.link()).jetstream(2.0)
    await js.delete_stream(names.stream)
    await js.add_stream(name=names.stream, subjects=[names.queue, f"{names.stream}.worker.*"])
    late = DecodeEnd(fleet._url, fleet._folder, fleet.config, fleet.namespace)
    fleet._stack.push_async_callback(late.close)
    await until(lambda: "has retention limits" in late.prefills._refusal)
    assert await late.request(prompt(BLOCK)) == "away"
    prefill = PrefillEnd(fleet._url, fleet._folder, fleet.config, fleet.namespace)
    fleet._stack.push_async_callback(prefill.close)
    await until(lambda: any(each.refused for each in prefill.consumer._readers))


async def test_a_foreign_consumer_is_no_member_of_the_group(fleet: Fleet) -> None:
    decode = await fleet.decode()
    js = (await decode.link.connection.link()).jetstream(2.0)
    await js.add_consumer(
        decode.link.names.stream,
        ConsumerConfig(durable_name="spy", ack_policy=AckPolicy.EXPLICIT),
    )
    prefill = PrefillEnd(fleet._url, fleet._folder, fleet.config, fleet.namespace)
    fleet._stack.push_async_callback(prefill.close)
    await until(lambda: any(each.refused for each in prefill.consumer._readers))
    refused = next(each.refused for each in prefill.consumer._readers if each.refused)
    assert "another consumer of the stream" in str(refused)
    await js.delete_consumer(decode.link.names.stream, "spy")
    await prefill.ready()  # it heals by itself
    assert await decode.request(prompt(BLOCK)) == "remote"


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_a_server_without_space_is_as_a_full_queue(tmp_path: Path, storage: str) -> None:
    settings = tmp_path / "nats.conf"
    settings.write_text("jetstream { max_memory_store: 40KB, max_file_store: 40KB }\n")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(JetStreamServer(tmp_path / "own", "--config", str(settings)))
        fleet = Fleet(server.url, tmp_path, stack, "small")
        fleet.config = PrefillQueueConfig(prefill_queue_storage=storage, **FAST)
        decode = await fleet.decode()
        waiting = [
            asyncio.create_task(decode.request(prompt(200 * BLOCK, each))) for each in range(4)
        ]
        ended, waits = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert ended.pop().result() == "full"
        await fleet.prefill()
        for each in waits:
            assert await each in ("full", "remote")
        await until(lambda: is_empty(decode))

        async def goes_on() -> bool:
            return await decode.request(prompt(100 * BLOCK, 9)) == "remote"

        await until(goes_on)
        assert decode.corrupt == 0


async def test_without_nats_prompts_are_computed_locally_at_once_and_later_not(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(JetStreamServer(tmp_path / "own"))
        fleet = Fleet(server.url, tmp_path, stack, "lost")
        decode, prefill = await fleet.decode(), await fleet.prefill()
        prefill.awake.clear()
        ask, answers = prefill.consumer._ask, []

        async def asked(*words: Any, **more: Any) -> Any:
            answers.append(await ask(*words, **more))
            return answers[-1]

        prefill.consumer._ask = asked  # type: ignore[method-assign]
        waiting = asyncio.create_task(decode.request(prompt(4 * BLOCK)))
        await until(lambda: answers)
        server.kill()
        prefill.awake.set()
        assert await waiting == "remote"  # it needs no NATS any more
        await until(lambda: not decode.prefills.is_ready)
        assert await decode.request(prompt(4 * BLOCK)) == "away"
        await server.come_back()
        await decode.ready()
        await prefill.ready()
        assert await decode.request(prompt(4 * BLOCK)) == "remote"
        assert decode.corrupt == 0
