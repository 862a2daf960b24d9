"""The whole house as real processes: serve, engines and nats-server, some of them killed."""

import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.fleet import BLOCK, PROMPT, Fleet
from support.polling import until
from support.processes import alive, children_of, command, http_json

from dynamo_router.workers.trtllm_proto import pb


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as made:
        yield made


async def test_a_cached_prefix_draws_its_like_and_slots_come_back(fleet: Fleet) -> None:
    tokens, cached = await fleet.ask(PROMPT)
    assert len(tokens) == 3 and cached == 0

    async def is_indexed() -> bool:
        return sorted((await fleet.overlaps(PROMPT)).values()) == [6]

    await until(is_indexed)
    for turn in range(4):
        tokens, cached = await fleet.ask(PROMPT + [turn] * 20)
        assert len(tokens) == 3 and cached == 6 * BLOCK
    rows = await fleet.workers()
    assert sorted(bool(row["indexed_blocks"]) for row in rows.values()) == [False, True]
    await until(fleet.all_exact)  # the idle engine too: it was asked to announce itself
    await until(fleet.idle)


async def test_an_engine_killed_in_mid_stream_fails_one_request_and_comes_back(
    fleet: Fleet,
) -> None:
    await fleet.engines[1].stop(signal.SIGKILL)

    async def only_the_first() -> bool:
        return (await fleet.workers())[1]["state"] != "ready"

    await until(only_the_first)
    for n in range(1, 5):
        assert len((await fleet.ask([n] * 40))[0]) == 3

    # Slow enough that the stream is open when the engine dies.
    fleet.engines[1] = await fleet.start_engine(1, "--speedup-ratio", "0.2")

    async def both() -> bool:
        return (await fleet.workers())[1]["state"] == "ready"

    await until(both)
    await fleet.engines[0].stop(signal.SIGKILL)

    async def only_the_second() -> bool:
        return (await fleet.workers())[0]["state"] != "ready"

    await until(only_the_second)
    request = pb.GenerateRequest(max_tokens=200, streaming=True)
    request.tokenized.input_token_ids.extend(PROMPT)
    call = fleet.generate(request)
    first = await call.read()
    assert isinstance(first, pb.GenerateResponse) and first.chunk.token_ids
    await fleet.engines[1].stop(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as lost:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "mid-stream" in (lost.value.details() or "")
    await until(fleet.idle)
    with pytest.raises(grpc.aio.AioRpcError) as nobody:
        await fleet.ask(PROMPT)
    assert nobody.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_requests_flow_without_nats_and_the_index_heals_after_it(fleet: Fleet) -> None:
    await fleet.ask(PROMPT)
    await fleet.kill_nats()
    other = [7] * (4 * BLOCK)
    assert len((await fleet.ask(other))[0]) == 3  # published into the void, or buffered
    health = await http_json(fleet.http, "/health")
    assert health["status"] == "ready"
    await fleet.nats.start()

    async def healed() -> bool:
        known = [max((await fleet.overlaps(p)).values(), default=0) for p in (PROMPT, other)]
        return known == [6, 4] and await fleet.all_exact()

    await until(healed, 40.0)


async def test_a_client_that_hangs_up_frees_its_slot(fleet: Fleet) -> None:
    request = pb.GenerateRequest(max_tokens=4000, streaming=True)
    request.tokenized.input_token_ids.extend(PROMPT)
    call = fleet.generate(request)
    await call.read()
    assert not await fleet.idle()
    call.cancel()
    await until(fleet.idle)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_leaves_no_child(tmp_path: Path, how: signal.Signals) -> None:
    async with command(
        tmp_path, "serve", "--port", "0", "--http-port", "0", "--mockers", "2", "--nats",
        "nats://127.0.0.1:1", "--speedup-ratio", "20",
    ) as router:  # fmt: skip
        await router.says("dynamo-router ready")
        children = children_of(router.pid)
        assert children
        assert await router.stop(how) == 0, router.text
        await until(lambda: not any(map(alive, children)))
        assert "Traceback" not in router.text and "[error" not in router.text
        assert "unhealthy" not in router.text.partition("draining")[2]


async def test_a_killed_router_takes_its_children_with_it(tmp_path: Path) -> None:
    async with command(
        tmp_path, "serve", "--port", "0", "--http-port", "0", "--mockers", "1"
    ) as router:
        await router.says("dynamo-router ready")
        family = children_of(router.pid)
        assert family
        await router.stop(signal.SIGKILL)
        await until(lambda: not any(map(alive, family)))


async def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with command(tmp_path, "serve", "--port", str(port), "--http-port", "0") as router:
            assert await router.stop(signal.SIGCONT) == 1
            assert f"{port}" in router.text and "in use" in router.text
            assert "Traceback" not in router.text
