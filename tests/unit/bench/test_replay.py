"""Replay against scripted engines: what is sent, what is counted, and every way to go wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.free_port import free_port
from support.scripted_engine import Script, answer_well, chunk, complete, engine, number_of

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.load.stats import LoadStats
from dynamo_router.bench.replay import ReplayConfig, replay, run, timed_requests
from dynamo_router.bench.traces.trace import TraceError, TraceRequest, encode_request, token_ids
from dynamo_router.router.proto.router_pb2 import ListWorkersResponse, WorkerStatus
from dynamo_router.workers.trtllm_proto import SERVICE, pb


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Six requests at one time: prompts of 500 and 1000 tokens in turn, 1 to 6 to generate."""
    path = tmp_path / "trace.jsonl"
    lines = [
        TraceRequest(5000, 1000 if n % 2 else 500, n + 1, (2 * n, 2 * n + 1)[: 1 + n % 2])
        for n in range(6)
    ]
    path.write_bytes(b"".join(encode_request(line) for line in lines))
    return str(path)


def config(trace: str, target: str, **more: Any) -> ReplayConfig:
    return ReplayConfig(trace=trace, target=target, **{"timeout_s": 20.0, **more})


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("concurrency", [None, 1, 3, 50])
async def test_every_request_is_answered_and_counted(
    trace: str, streaming: bool, concurrency: int | None
) -> None:
    received: list[Any] = []
    async with engine(answer_well, received=received) as target:
        result = await replay(
            config(trace, target, streaming=streaming, concurrency=concurrency, seed=3)
        )
    assert (result.requests, result.errors, result.rejected) == (6, 0, 0)
    assert result.cached_token_share == pytest.approx(600 / 4500)
    assert result.details["output_tokens"] == 21
    assert result.ttft_ms.p50 is not None and result.e2e_ms.p50 is not None
    assert result.ttft_ms.p50 <= result.e2e_ms.p50
    assert (result.itl_ms.mean is not None) == streaming
    assert result.balance_max_over_mean is None and result.seed == 3
    by_number = sorted(received, key=number_of)
    assert [number_of(request) for request in by_number] == list(range(6))
    assert [request.max_tokens for request in by_number] == [1, 2, 3, 4, 5, 6]
    assert len({request.request_id for request in received}) == 6
    for number, request in enumerate(by_number):
        length = 1000 if number % 2 else 500
        ids = (2 * number, 2 * number + 1) if length > 512 else (2 * number,)
        line = TraceRequest(0, length, 0, ids)
        expected = token_ids(line, 32000, seed=3)
        assert np.array_equal(request.tokenized.input_token_ids, expected)
        assert request.ignore_eos and request.streaming == streaming


async def test_the_target_says_how_large_its_vocabulary_is(trace: str) -> None:
    received: list[Any] = []
    info = pb.GetModelInfoResponse(model_id="tiny", vocab_size=50)
    async with engine(answer_well, model_info=info, received=received) as target:
        await replay(config(trace, target, requests=1))
        await replay(config(trace, target, requests=1, vocab_size=7))
    assert 40 < max(received[0].tokenized.input_token_ids) < 50
    assert max(received[1].tokenized.input_token_ids) == 6


async def test_a_router_says_how_it_routes_unless_told(trace: str) -> None:
    workers = ListWorkersResponse(
        workers=[WorkerStatus(state=state) for state in ("ready", "unhealthy", "ready", "ready")]
    )
    said = (("x-dynamo-router-mode", "kv"), ("x-dynamo-router-policy", "dynamo:1"))
    info = pb.GetModelInfoResponse()
    async with engine(answer_well, model_info=info, metadata=said, workers=workers) as target:
        read = await replay(config(trace, target))
        told = await replay(config(trace, target, mode="x", policy="y", workers=7))
    assert (read.mode, read.policy, read.workers) == ("kv", "dynamo:1", 3)
    assert (told.mode, told.policy, told.workers) == ("x", "y", 7)
    async with engine(answer_well, model_info=info) as target:
        engine_only = await replay(config(trace, target))
    assert (engine_only.mode, engine_only.policy) == ("unknown", "unknown")
    assert engine_only.workers is None


async def test_limits_on_requests_and_output(trace: str) -> None:
    received: list[Any] = []
    async with engine(answer_well, received=received) as target:
        result = await replay(config(trace, target, requests=4, max_output=2))
    assert result.requests == 4 and result.errors == 0
    assert sorted(request.max_tokens for request in received) == [1, 2, 2, 2]


def test_arrivals_follow_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    times = (1000, 1000, 1500.5, 9000)
    path.write_bytes(b"".join(encode_request(TraceRequest(t, 1, 0, (7,))) for t in times))
    sent = list(timed_requests(config(str(path), "any", arrival_speedup=2.0), 100))
    assert [each.due_s for each in sent] == [0, 0, 0.25025, 4]
    assert [each.expected for each in sent] == [1, 1, 1, 1]


@pytest.mark.parametrize("trailing", [True, False])
async def test_balance_comes_from_the_worker_each_answer_names(trace: str, trailing: bool) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        worker = (("x-dynamo-worker-id", "7"), ("x-dynamo-dp-rank", str(number_of(request) % 2)))
        if trailing:
            context.set_trailing_metadata(worker)
        else:
            await context.send_initial_metadata(worker)
        async for message in answer_well(request, context):
            yield message

    async with engine(script) as target:
        two = await replay(config(trace, target))
        four = await replay(config(trace, target, workers=4))
    assert two.balance_max_over_mean == pytest.approx(3000 / 2250)
    assert two.details["workers_seen"] == 2
    assert four.balance_max_over_mean == pytest.approx(3000 / 1125)


async def test_tokens_that_come_several_at_a_time(trace: str) -> None:
    """A gap before k tokens counts as k equal ones, so that ITL stays a time per token."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk()
        yield chunk(1, 2)
        yield chunk(3, 4, 5, 6)
        yield complete(1, 2, 3, 4, 5, 6)

    seen: list[LoadStats] = []
    async with engine(script) as target:
        result = await replay(config(trace, target), lambda total, stats: seen.append(stats))
    # Only the last request of the trace asks for six tokens.
    assert result.errors == 5 and result.details["errors_by_code"] == {"WRONG_LENGTH": 5}
    assert result.itl_ms.p50 == pytest.approx(result.itl_ms.p99)
    assert seen[0].done == 6 and seen[0].failed == 5


async def nothing_but(*messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message


def ends_with(status: grpc.StatusCode, details: str, *before: Any) -> Script:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        for message in before:
            yield message
        await context.abort(status, details)

    return script


@pytest.mark.parametrize(
    ("script", "code", "rejected"),
    [
        (ends_with(grpc.StatusCode.INTERNAL, "broken"), "INTERNAL", False),
        (ends_with(grpc.StatusCode.INTERNAL, "broken", chunk(0)), "INTERNAL", False),
        (ends_with(grpc.StatusCode.UNAVAILABLE, "no workers"), "UNAVAILABLE", False),
        (ends_with(grpc.StatusCode.UNAVAILABLE, "Overloaded"), "UNAVAILABLE", True),
        (ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full"), "RESOURCE_EXHAUSTED", True),
        (lambda r, c: nothing_but(), "INCOMPLETE", False),
        (lambda r, c: nothing_but(chunk(0)), "INCOMPLETE", False),
        (lambda r, c: nothing_but(chunk(0), complete(1)), "TOKEN_MISMATCH", False),
        (lambda r, c: nothing_but(chunk(0, 1), complete(1, 0)), "TOKEN_MISMATCH", False),
        (lambda r, c: nothing_but(chunk(0), complete()), "TOKEN_MISMATCH", False),
        (lambda r, c: nothing_but(complete()), "WRONG_LENGTH", False),
        (lambda r, c: nothing_but(complete(*range(9))), "WRONG_LENGTH", False),
        (lambda r, c: nothing_but(complete(0, finish="error")), "ENGINE_ERROR", False),
        (lambda r, c: nothing_but(b"\xff\xff\xff"), "UNDECODABLE", False),
    ],
)
async def test_a_failed_request_is_counted_for_what_it_is(
    trace: str, script: Script, code: str, rejected: bool
) -> None:
    async def first_one_fails(request: Any, context: Any) -> AsyncIterator[Any]:
        chosen = script if number_of(request) == 1 else answer_well
        async for message in chosen(request, context):
            yield message

    async with engine(first_one_fails) as target:
        result = await replay(config(trace, target, timeout_s=None))
    assert result.requests == 6
    assert (result.errors, result.rejected) == ((0, 1) if rejected else (1, 0))
    assert result.details["errors_by_code"] == ({} if rejected else {code: 1})
    assert result.details["first_failure"].startswith(code)
    # A request that failed lends its numbers to nothing.
    assert result.details["input_tokens"] == 3500
    assert result.details["output_tokens"] == 19


async def test_a_request_that_hangs_is_given_up(trace: str) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(0)
        await asyncio.Event().wait()

    async with engine(script) as target:
        result = await replay(config(trace, target, timeout_s=0.2))
    assert result.details["errors_by_code"] == {"DEADLINE_EXCEEDED": 6}
    assert result.cached_token_share is None and result.ttft_ms.mean is None


async def test_a_target_that_dies_in_mid_stream(trace: str) -> None:
    async def generate(request: Any, context: Any) -> AsyncIterator[bytes]:
        if number_of(request) < 2:
            async for message in answer_well(request, context):
                yield message.SerializeToString()
            return
        yield chunk(0).SerializeToString()
        dying.set()
        await asyncio.Event().wait()

    dying = asyncio.Event()
    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(
        generate, request_deserializer=pb.GenerateRequest.FromString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Generate": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def kill() -> None:
        await dying.wait()
        await server.stop(0)

    killing = asyncio.create_task(kill())
    result = await replay(config(trace, f"127.0.0.1:{port}", concurrency=1))
    await killing
    assert result.requests == 6 and result.errors == 4
    assert set(result.details["errors_by_code"]) <= {"UNAVAILABLE", "CANCELLED"}


async def test_no_more_requests_run_than_allowed(trace: str) -> None:
    running = most = 0

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with asyncio.timeout(60):
            # Every request stays until the limit was reached once, or it is among the last.
            while most < 2:
                await asyncio.sleep(0)
        async for message in answer_well(request, context):
            yield message
        running -= 1

    async with engine(script) as target:
        held = await replay(config(trace, target, max_in_flight=2))
        assert most == 2 and held.details["held_back"] > 0
        most = 0
        in_turn = await replay(config(trace, target, concurrency=2))
        assert most == 2 and in_turn.details["held_back"] == 0
    assert held.errors == in_turn.errors == 0


async def test_cancelling_cancels_what_runs(trace: str) -> None:
    started = asyncio.Semaphore(0)
    stopped = asyncio.Semaphore(0)

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        started.release()
        try:
            yield chunk(0)
            await asyncio.Event().wait()
        finally:
            stopped.release()

    async with engine(script) as target, asyncio.timeout(60):
        running = asyncio.create_task(replay(config(trace, target)))
        for _ in range(6):
            await started.acquire()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(6):
            await stopped.acquire()


async def test_no_target_at_all(trace: str) -> None:
    with pytest.raises(ConfigError, match="target: is needed"):
        await replay(ReplayConfig(trace=trace))
    for target in ("localhost", "http://localhost:80", "localhost:x", ":80"):
        with pytest.raises(ConfigError, match="is not HOST:PORT"):
            await replay(config(trace, target))
    with pytest.raises(ConfigError, match="does not answer within 0.3 s") as caught:
        await replay(config(trace, f"127.0.0.1:{free_port()}", connect_timeout_s=0.3))
    assert caught.value.key == "target"


async def test_a_bad_last_line_is_found_before_anything_is_sent(trace: str) -> None:
    received: list[Any] = []
    with open(trace, "a") as file:
        file.write("nonsense\n")
    async with engine(answer_well, received=received) as target:
        with pytest.raises(TraceError, match=":7: "):
            await replay(config(trace, target))
        assert received == []
        assert (await replay(config(trace, target, requests=6))).errors == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requests", 0),
        ("concurrency", 0),
        ("concurrency", -1),
        ("max_output", 0),
        ("max_in_flight", 0),
        ("workers", 0),
        ("arrival_speedup", 0.0),
        ("arrival_speedup", -1.0),
        ("arrival_speedup", float("nan")),
        ("arrival_speedup", float("inf")),
        ("timeout_s", 0.0),
        ("connect_timeout_s", -1.0),
        ("vocab_size", 1),
        ("vocab_size", 2**32 + 1),
        ("trace_block_size", 0),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        config("any", "any", **{key: value})
    assert caught.value.key == key


class ThreadedEngine:
    """A synchronous server, for `run` owns its event loop."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def _generate(self, request: Any, context: Any) -> Any:
        if self._fail:
            context.abort(grpc.StatusCode.INTERNAL, "broken")
        yield complete(*range(request.max_tokens)).SerializeToString()

    def __enter__(self) -> str:
        handler = grpc.unary_stream_rpc_method_handler(
            self._generate, request_deserializer=pb.GenerateRequest.FromString
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Generate": handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return f"127.0.0.1:{port}"

    def __exit__(self, *exc: object) -> None:
        self._server.stop(None).wait()


def test_the_command_prints_a_table_and_writes_json(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    with ThreadedEngine(fail=False) as target:
        assert run(config(trace, target, json=str(out), mode="kv", workers=2)) == 0
        table = capsys.readouterr().out
        assert "TTFT mean ms" in table and "kv" in table
        assert run(config(trace, target, json="-")) == 0
    captured = capsys.readouterr()
    assert "TTFT mean ms" in captured.err
    for content, mode in (
        (json.loads(captured.out), "unknown"),
        (json.loads(out.read_text()), "kv"),
    ):
        [result] = content["runs"]
        assert result["mode"] == mode and result["requests"] == 6 and result["errors"] == 0
        assert content["environment"]["python"].startswith("CPython")


def test_the_command_fails_if_every_request_did(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadedEngine(fail=True) as target:
        assert run(config(trace, target)) == 1
    assert "6 (INTERNAL 6)" in capsys.readouterr().out


def test_an_unwritable_result_is_found_before_the_run(trace: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        run(config(trace, "127.0.0.1:1", json=str(tmp_path / "none" / "out.json")))
