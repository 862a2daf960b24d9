"""What every dialect's hand-off does, against fakes of its engines that behave as those do: leases
end, rooms are used once, a prefill waits for its reader, a success may be empty."""

import asyncio
import os
from collections import Counter

import grpc
import pytest
from support.fake_engine import prompt
from support.handoffs.fabric import CACHED, EOS, greedy
from support.handoffs.scene import TOKENS, aggregated, scene
from support.handoffs.wires import WIRES
from support.polling import until

from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.trtllm_proto import SERVICE, pb

STORM = int(os.environ.get("CANCEL_STORM", "0"))
"""Clients that leave at once, before each dialect; 0: some."""
KEEPING = [name for name in WIRES if name.startswith("openengine")]
"""Whose prefill engines keep a prompt until it was read."""
WRITING = [name for name in WIRES if name.endswith(("push", "mooncake"))]
together = [name for name in WIRES if WIRES[name].shape != "relay"]  # type: ignore[attr-defined]
relaying = [name for name in WIRES if name not in together]
whole = [name for name in WIRES if WIRES[name].runs_whole]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WIRES)
async def test_text_and_usage_are_those_of_one_worker(name: str) -> None:
    whole = await aggregated(name)
    async with scene(name) as on:
        last = await on.answer()
        assert list(last.output_token_ids) == list(whole.output_token_ids)
        assert list(last.output_token_ids) == greedy(range(1, TOKENS + 1), 4)
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason")
        for count in counts:
            assert getattr(last, count) == getattr(whole, count), count
        assert last.cached_tokens == CACHED
        assert [leg.phase for leg in on.prefill[0].legs.asked] == ["prefill"]
        assert [leg.phase for leg in on.decode[0].legs.asked] == ["decode"]
        metrics = await on.ports.metrics()
        assert metrics["dynamo_router_disagg_handoff_seconds_count"] == 1


@pytest.mark.parametrize("name", WIRES)
async def test_a_slow_prefill_keeps_its_reader_waiting(name: str) -> None:
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["slow"]
        answer = asyncio.ensure_future(on.answer())
        await until(lambda: bool(on.prefill[0].legs.asked))
        if name in together:
            await until(lambda: bool(on.decode[0].legs.asked))
        assert not answer.done()
        on.prefill[0].legs.go.set()
        assert len((await answer).output_token_ids) == 4


PREFILL_FAULTS = {
    "refuse": "prefill",
    "unavailable": "prefill",
    "die": "prefill",
    "hang": "prefill_timeout",
}


@pytest.mark.parametrize("fault", PREFILL_FAULTS)
@pytest.mark.parametrize("name", WIRES)
async def test_a_prefill_that_fails_has_the_pair_chosen_anew(name: str, fault: str) -> None:
    """The decode worker that waits for it is let go at once, and hears of another room."""
    async with scene(name, prefill=2, decode=2) as on:
        on.give(on.prefill, fault)
        last = await on.answer()
        assert list(last.output_token_ids) == greedy(range(1, TOKENS + 1), 4)
        await on.failed(PREFILL_FAULTS[fault])
        asked = [leg for wire in on.prefill for leg in wire.legs.asked]
        ids = Counter(leg.request_id for leg in asked)
        assert max(ids.values()) == 1, "an attempt has an id of its own"
        keys = [leg.key for leg in asked if leg.key]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", relaying)
async def test_a_prefill_that_hands_nothing_over_is_a_failure(name: str) -> None:
    async with scene(name, prefill=1 if name in whole else 2) as on:
        on.give(on.prefill, "no_parcel")
        last = await on.answer()
        assert list(last.output_token_ids) == greedy(range(1, TOKENS + 1), 4)
        await on.failed("no_parcel")


@pytest.mark.parametrize("name", [name for name in relaying if name in whole])
async def test_a_prefill_that_ends_the_answer_is_the_answer(name: str) -> None:
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["terminal"]
        last = await on.answer()
        assert (list(last.output_token_ids), last.finish_reason) == ([EOS], "stop")
        assert not on.decode[0].legs.asked


DECODE_FAULTS = {
    "refuse": "decode",
    "unavailable": "decode",
    "die": "decode",
    "empty": "decode_empty",
    "hang": "handoff_timeout",
}


@pytest.mark.parametrize("fault", DECODE_FAULTS)
@pytest.mark.parametrize("name", WIRES)
async def test_a_decode_worker_that_fails_has_the_pair_chosen_anew(name: str, fault: str) -> None:
    async with scene(name, decode=2) as on:
        on.give(on.decode, fault)
        last = await on.answer()
        assert list(last.output_token_ids) == greedy(range(1, TOKENS + 1), 4)
        if name in KEEPING and fault in ("die", "empty", "hang"):
            await on.failed("unread")  # nobody knows whether it has read
            on.fabric.held.clear()  # the operator starts the prefill engine anew
        phase = DECODE_FAULTS[fault]
        if name == "sglang" and fault == "empty":
            phase = "decode"  # it says in words that it gave up
        await on.failed(phase)
        asked = [leg for wire in on.decode for leg in wire.legs.asked]
        assert len({leg.request_id for leg in asked}) == len(asked)


@pytest.mark.parametrize("name", together)
async def test_both_fail_and_the_cause_is_what_the_client_hears(name: str) -> None:
    async with scene(name, max_attempts=1) as on:
        on.prefill[0].legs.faults = ["unavailable later"]
        answer = asyncio.ensure_future(on.answer())
        await until(lambda: bool(on.decode[0].legs.asked))
        on.prefill[0].legs.go.set()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer
        assert "no memory" in (raised.value.details() or "")
        await on.failed("prefill")
        await until(lambda: len(on.decode[0].legs.cancelled) == 1)


@pytest.mark.parametrize("name", together)
async def test_tokens_flow_before_the_prefill_has_answered(name: str) -> None:
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["late"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        tokens: list[int] = []
        async for message in stream:
            found = pb.GenerateResponse.FromString(message)
            tokens += found.chunk.token_ids
            if len(tokens) == 1:
                on.prefill[0].legs.go.set()
        assert tokens == greedy(range(1, TOKENS + 1), 4)
        assert found.complete.cached_tokens == CACHED


@pytest.mark.parametrize("name", WIRES)
async def test_clients_that_leave_leave_nothing(name: str) -> None:
    """Of all that were cancelled no block is held once the leases are over."""
    count = STORM or (1000 if name == "mock" else 40)
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["hang"] * count
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        bodies = [prompt(f"r{n}", TOKENS).SerializeToString() for n in range(count)]
        streams = [call(body) for body in bodies]
        await until(lambda: len(on.prefill[0].legs.asked) == count)
        for stream in streams:
            stream.cancel()
        if name in WRITING:
            await until(lambda: len(on.decode[0].legs.cancelled) == count)
            assert not on.prefill[0].legs.cancelled, "what is written on is not cut off"
        if name in WRITING + KEEPING:
            for pool in on.pools.running:
                for client in pool.monitor.ready_clients():
                    await client.close()
        await until(lambda: len(on.prefill[0].legs.cancelled) == count)


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("what", ["answers", "prompt_logprobs"])
async def test_what_two_workers_cannot_share(name: str, what: str) -> None:
    """Goes to the decode worker, or is refused by the field's name where that runs no whole one."""
    async with scene(name) as on:
        asked = prompt("r1", TOKENS)
        field = "num_return_sequences" if what == "answers" else "prompt_logprobs"
        if what == "answers":
            asked.sampling_config.num_return_sequences = 2
        else:
            asked.output_config.prompt_logprobs = 1
        if name in whole:
            with_words = name == "mock" or (name.startswith("vllm") and what != "answers")
            if not with_words:  # its dialect has no word for that either
                return
            await on.ports.answers(asked)
            assert [leg.phase for leg in on.decode[0].legs.asked] == [""]
        else:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await on.ports.answers(asked)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert field in (raised.value.details() or "")
        assert not on.prefill[0].legs.asked


@pytest.mark.parametrize("name", KEEPING)
async def test_what_is_kept_is_read_for_clients_that_left(name: str) -> None:
    """As it is computed: by the decode worker that was chosen, which makes one token."""
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["slow"] * 20
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        streams = [call(prompt(f"r{n}", TOKENS).SerializeToString()) for n in range(20)]
        await until(lambda: len(on.prefill[0].legs.asked) == 20)
        for stream in streams:
            stream.cancel()
        await until(lambda: not int(on.pools.prefill.router.slots.own_requests().sum()))
        assert not on.prefill[0].legs.cancelled and not on.decode[0].legs.asked
        on.prefill[0].legs.go.set()
        # Not until they have ended: what reads is cut off after its first token.
        await until(lambda: len(on.decode[0].legs.asked) == 20 and not on.fabric.blocks)
        assert {leg.max_tokens for leg in on.decode[0].legs.asked} == {1}
        await on.failed("unread", 0)


@pytest.mark.parametrize("name", KEEPING)
async def test_a_reader_is_not_ended_before_it_has_read(name: str) -> None:
    async with scene(name) as on:
        on.decode[0].legs.faults = ["slow"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        await until(lambda: bool(on.decode[0].legs.asked))
        stream.cancel()
        await until(lambda: not int(on.pools.workers.router.slots.own_requests().sum()))
        assert not on.decode[0].legs.cancelled and on.fabric.blocks
        on.decode[0].legs.go.set()
        await until(lambda: not on.fabric.blocks)
        await on.failed("unread", 0)


@pytest.mark.parametrize("name", KEEPING)
async def test_what_a_decode_worker_refuses_another_one_reads(name: str) -> None:
    """Its client gets a new pair meanwhile; nobody reads a prompt twice."""
    async with scene(name, decode=2) as on:
        for wire in on.decode:
            wire.legs.faults = ["refuse"]
        await on.answer()
        await until(lambda: not on.fabric.blocks)
        reads = [leg for wire in on.decode for leg in wire.legs.asked]
        assert sorted(Counter(leg.key for leg in reads).values()) in ([1, 3], [2, 2])
        await on.failed("unread", 0)


@pytest.mark.parametrize("name", KEEPING)
async def test_what_names_another_host_is_never_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "dynamo_router.server.handoff.leg_answers.foreign_host"
    monkeypatch.setattr(module, lambda parcel, address: "10.0.0.1")
    async with scene(name, max_attempts=1) as on:
        with pytest.raises(grpc.aio.AioRpcError):
            await on.answer()
        await on.failed("unread")
        assert not on.decode[0].legs.asked
        on.fabric.held.clear()


@pytest.mark.parametrize("name", KEEPING)
async def test_what_an_engine_that_drains_keeps_is_read(name: str) -> None:
    """It gets no new requests; the prompts that it has are there all the same."""
    async with scene(name) as on:
        on.prefill[0].legs.faults = ["slow"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        await until(lambda: bool(on.prefill[0].legs.asked))
        monitor = on.pools.prefill.monitor
        monitor.drain(*monitor.engines)
        stream.cancel()
        await until(lambda: not int(on.pools.prefill.router.slots.own_requests().sum()))
        on.prefill[0].legs.go.set()
        await until(lambda: bool(on.decode[0].legs.asked) and not on.fabric.blocks)
        await on.failed("unread", 0)


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("name", KEEPING)
async def test_what_an_engine_keeps_that_fails_its_probes_is_read_or_counted(
    name: str, comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once it answers again, as one that asks an engine that is away stands still."""
    limits = HandoffLimits() if comes_back else HandoffLimits(disagg_handoff_timeout_s=0.4)
    async with scene(name, handoff=limits) as on:
        on.prefill[0].legs.faults = ["slow"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        await until(lambda: bool(on.prefill[0].legs.asked))
        stream.cancel()
        await until(lambda: not int(on.pools.prefill.router.slots.own_requests().sum()))
        (engine,) = on.pools.prefill.monitor.engines
        with monkeypatch.context() as away:
            away.setattr(type(engine), "is_ready", property(lambda each: each is not engine))
            on.prefill[0].legs.go.set()
            await until(lambda: bool(on.fabric.held))
            if not comes_back:
                await on.failed("unread")
                on.fabric.held.clear()
        assert not on.decode[0].legs.asked
        for hear in list(on.pools.prefill.monitor.listeners):
            hear()
        if comes_back:
            await until(lambda: bool(on.decode[0].legs.asked) and not on.fabric.blocks)
            await on.failed("unread", 0)


@pytest.mark.parametrize("name", KEEPING)
async def test_prompts_that_wait_for_their_readers_are_bounded(name: str) -> None:
    """Also those of clients that left, which no other limit bounds."""
    limits = HandoffLimits(max_unread_prompts=3)
    async with scene(name, handoff=limits) as on:
        on.prefill[0].legs.faults = ["slow"] * 3
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        streams = [call(prompt(f"r{n}", TOKENS).SerializeToString()) for n in range(3)]
        await until(lambda: len(on.prefill[0].legs.asked) == 3)
        for stream in streams:
            stream.cancel()
        await until(lambda: not int(on.pools.prefill.router.slots.own_requests().sum()))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await on.answer("r4")
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await on.ports.shows('dynamo_router_limits_hit_total{limit="max_unread_prompts"}', 1)
        on.prefill[0].legs.go.set()
        await until(
            lambda: (
                len(on.decode[0].legs.asked) == 3 and not on.pools.workers.handoffs.readings.tasks
            )
        )
        await on.answer("r5")


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", KEEPING)
async def test_a_reader_that_is_removed_leaves_a_prompt_that_is_counted(
    name: str, left: bool
) -> None:
    async with scene(name, max_attempts=1) as on:
        on.decode[0].legs.faults = ["slow"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        await until(lambda: bool(on.decode[0].legs.asked))
        if left:
            stream.cancel()
            await until(lambda: not int(on.pools.workers.router.slots.own_requests().sum()))
        monitor = on.pools.workers.monitor
        (client,) = monitor.ready_clients()
        await monitor.remove(client.address)
        if not left:
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in stream:
                    pass
        await on.failed("unread")
        on.fabric.held.clear()


@pytest.mark.parametrize("name", KEEPING)
async def test_so_does_one_that_is_removed_as_it_reads_for_a_client_that_left(name: str) -> None:
    async with scene(name) as on:
        on.prefill[0].legs.faults, on.decode[0].legs.faults = ["slow"], ["slow"]
        call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", TOKENS).SerializeToString())
        await until(lambda: bool(on.prefill[0].legs.asked))
        stream.cancel()
        await until(lambda: not int(on.pools.prefill.router.slots.own_requests().sum()))
        on.prefill[0].legs.go.set()
        await until(lambda: bool(on.decode[0].legs.asked))
        monitor = on.pools.workers.monitor
        (client,) = monitor.ready_clients()
        await monitor.remove(client.address)
        await on.failed("unread")
        on.fabric.held.clear()
