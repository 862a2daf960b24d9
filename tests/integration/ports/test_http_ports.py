"""The service from outside over HTTP, with the other ports beside it where they tell the same."""

import asyncio
import io
from typing import Any

import pytest
from grpc import aio
from support.fake_engine import FakeEngine, chunk, prompt, stall
from support.polling import until
from support.serving import BLOCK, PROMPT, serving, stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import SERVICE

EVENTS = KvRouterConfig(block_size=BLOCK, seed=1)


async def test_health_follows_the_workers() -> None:
    async with serving(FakeEngine()) as ports:
        status, body = await ports.http("GET", "/health")
        assert (status, body["status"], body["workers"]) == (200, "ready", {"ready": 1})
        assert body["event_plane"] == {"state": "off", "server": "off"}
        (entry,) = ports.server.router.registry.entries()
        ports.server.router.registry.set_state(entry.worker_id, WorkerState.UNHEALTHY)
        status, body = await ports.http("GET", "/health")
        assert (status, body["status"]) == (503, "not ready")
        assert await ports.http("GET", "/live") == (200, {"status": "live"})


async def test_without_workers_it_is_live_and_not_ready() -> None:
    async with serving() as ports:
        assert (await ports.http("GET", "/health"))[0] == 503
        assert (await ports.http("GET", "/live"))[0] == 200
        assert await ports.http("GET", "/workers") == (200, {"workers": []})


async def test_workers_show_their_load_while_it_lasts() -> None:
    async with serving(FakeEngine(stall, worker_id=7)) as ports:
        call = asyncio.create_task(ports.answers(prompt(tokens=2 * BLOCK)))
        await until(lambda: ports.server.dispatcher.in_flight == 1)

        async def row() -> Any:
            return (await ports.http("GET", "/workers"))[1]["workers"][0]

        while (busy := await row())["active_prefill_tokens"]:  # until its first token is out
            await asyncio.sleep(0.01)
        assert set(busy) >= {
            "worker_id", "dp_rank", "address", "state", "indexed_blocks", "active_blocks",
            "active_prefill_tokens", "event_source_state",
        }  # fmt: skip
        assert (busy["worker_id"], busy["dp_rank"], busy["state"]) == (7, 0, "ready")
        assert (busy["active_requests"], busy["active_blocks"]) == (1, 2)
        assert busy["event_source_state"] == "approximate"
        call.cancel()
        await until(lambda: ports.server.dispatcher.in_flight == 0)
        assert (await row())["active_requests"] == 0


async def test_overlaps_tell_of_workers_that_only_publish_too() -> None:
    async with serving(FakeEngine(worker_id=7), router=EVENTS) as ports:
        router = ports.server.router
        router.apply_event(stored(WorkerWithDpRank(7), PROMPT))
        router.apply_event(stored(WorkerWithDpRank(2**64 - 1, 3), PROMPT[: 2 * BLOCK]))
        assert await ports.http("POST", "/overlaps", json={"token_ids": PROMPT}) == (
            200,
            {"7": 4, f"{2**64 - 1}/3": 2},
        )
        salted = {"token_ids": PROMPT, "cache_namespace": "tenant"}
        assert await ports.http("POST", "/overlaps", json=salted) == (200, {})
        scores = await ports.select.GetOverlapScores(rpb.OverlapRequest(token_ids=PROMPT))
        assert {(o.worker.worker_id, o.worker.dp_rank): o.blocks for o in scores.overlaps} == {
            (7, 0): 4,
            (2**64 - 1, 3): 2,
        }
        listed = await ports.select.ListWorkers(rpb.ListWorkersRequest())
        states = {w.worker.worker_id: (w.state, w.indexed_blocks) for w in listed.workers}
        assert states == {7: ("ready", 4), 2**64 - 1: ("unregistered", 2)}


async def test_what_the_index_had_no_room_for_is_told() -> None:
    config = KvRouterConfig(block_size=BLOCK, router_max_index_blocks=3)
    async with serving(FakeEngine(worker_id=7), router=config) as ports:
        ports.server.router.apply_event(stored(WorkerWithDpRank(7), PROMPT))
        (row,) = (await ports.http("GET", "/workers"))[1]["workers"]
        assert (row["indexed_blocks"], row["unindexed_blocks"]) == (3, 1)
        assert row["event_source_state"] == "trimmed"
        metrics = await ports.metrics()
        assert metrics["dynamo_router_index_evicted_blocks_total"] == 1


async def test_every_door_tells_the_storage_tiers_apart() -> None:
    async with serving(FakeEngine(worker_id=7), router=EVENTS) as ports:
        worker = WorkerWithDpRank(7)
        for n, (tier, blocks) in enumerate(
            [("device", 1), ("host_pinned", 3), ("disk", 4), ("external", 2)], 1
        ):
            ports.server.router.apply_event(stored(worker, PROMPT[: blocks * BLOCK], n, tier))
        body = {"token_ids": PROMPT}
        assert await ports.http("POST", "/overlaps", json=body) == (200, {"7": 1})
        by_tier = {"device": 1, "host_pinned": 2, "disk": 1, "external": 0}
        asked = await ports.http("POST", "/overlaps", json={**body, "by_tier": True})
        assert asked == (200, {"7": by_tier})
        (row,) = (await ports.http("GET", "/workers"))[1]["workers"]
        assert row["indexed_blocks"] == 1
        assert row["lower_tier_blocks"] == {"host_pinned": 3, "disk": 4, "external": 2}
        (found,) = (
            await ports.select.GetOverlapScores(rpb.OverlapRequest(token_ids=PROMPT))
        ).overlaps
        told = (found.blocks, found.host_blocks, found.disk_blocks, found.external_blocks)
        assert told == tuple(by_tier.values())
        (status,) = (await ports.select.ListWorkers(rpb.ListWorkersRequest())).workers
        assert (status.host_blocks, status.disk_blocks, status.external_blocks) == (3, 4, 2)
        chosen = await ports.select.SelectWorker(rpb.SelectWorkerRequest(token_ids=PROMPT))
        (term,) = (await ports.select.Explain(rpb.ExplainRequest(token_ids=PROMPT))).candidates
        for said in (chosen, term):
            blocks = (said.overlap_blocks, said.host_overlap_blocks, said.disk_overlap_blocks)
            assert blocks == (1, 2, 1)
        request = prompt()
        request.tokenized.input_token_ids[:] = PROMPT
        await ports.answers(request)
        metrics = await ports.metrics()
        for tier, held, expected in (("device", 1, 1), ("host_pinned", 3, 2), ("disk", 4, 1)):
            stored_in = f'dynamo_router_index_blocks_total{{change="stored",tier="{tier}"}}'
            assert metrics[stored_in] == held
            assert metrics[f'dynamo_router_overlap_blocks_total{{tier="{tier}"}}'] == expected
        worker_disk = '{dp_rank="0",tier="disk",worker_id="7"}'
        assert metrics[f"dynamo_router_worker_lower_tier_blocks{worker_disk}"] == 4
        assert metrics["dynamo_component_router_kv_hit_rate_sum"] == 1.0


async def test_a_request_goes_to_the_rank_that_has_its_prefix() -> None:
    """Registered, indexed, booked, sent and answered: all by (worker, rank)."""
    engine = FakeEngine(stall, worker_id=7)
    engine.dp_size = 2
    async with serving(engine, router=EVENTS) as ports:
        router = ports.server.router
        router.apply_event(stored(WorkerWithDpRank(7, 0), PROMPT[:BLOCK]))
        router.apply_event(stored(WorkerWithDpRank(7, 1), PROMPT[: 2 * BLOCK]))
        other = [token + 500 for token in PROMPT]
        router.apply_event(stored(WorkerWithDpRank(7, 0), other, 2))
        assert await ports.http("POST", "/overlaps", json={"token_ids": PROMPT}) == (
            200,
            {"7": 1, "7/1": 2},
        )
        calls = []
        for tokens in (PROMPT, other):
            request = prompt(f"r{len(calls)}")
            request.tokenized.input_token_ids[:] = tokens
            call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
            calls.append(call(request.SerializeToString()))
            await calls[-1].read()
        assert [seen["x-dynamo-dp-rank"] for seen in engine.metadata] == ["1", "0"]
        rows = (await ports.http("GET", "/workers"))[1]["workers"]
        loads = {row["dp_rank"]: (row["active_requests"], row["active_blocks"]) for row in rows}
        assert loads == {0: (1, 4), 1: (1, 4)}
        engine.go.set()
        for call, rank in zip(calls, ("1", None), strict=True):
            assert await call.read() is not aio.EOF and await call.read() is aio.EOF
            trailing = dict(await call.trailing_metadata())
            assert (trailing["x-dynamo-worker-id"], trailing.get("x-dynamo-dp-rank")) == ("7", rank)
        pinned = await ports.select.SelectWorker(
            rpb.SelectWorkerRequest(
                token_ids=PROMPT, pinned_worker=rpb.Worker(worker_id=7, dp_rank=0)
            )
        )
        assert (pinned.worker.dp_rank, pinned.overlap_blocks) == (0, 1)
        metrics = await ports.metrics()
        for rank, blocks in ((0, 5), (1, 2)):
            labels = f'{{dp_rank="{rank}",worker_id="7"}}'
            assert metrics[f"dynamo_router_worker_indexed_blocks{labels}"] == blocks
            assert metrics[f"dynamo_router_worker_active_requests{labels}"] == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "bad body"),
        (b"{", "bad body"),
        (b"[1, 2]", "bad body"),
        (b"{}", "token_ids"),
        (b'{"token_ids": "abc"}', "token_ids"),
        (b'{"token_ids": [1.5]}', "token_ids"),
        (b'{"token_ids": [1], "tokens": [2]}', "tokens"),
        (b'{"token_ids": [1], "by_tier": "disk"}', "by_tier"),
        (b'{"token_ids": [-1]}', "out of range"),
        (b'{"token_ids": [4294967296]}', "out of range"),
        (b'{"token_ids": [99999999999999999999]}', "range"),
        (b"\xff\xfe", "bad body"),
    ],
)
async def test_bad_bodies_are_told_what_is_wrong(body: bytes, text: str) -> None:
    async with serving() as ports:
        status, answer = await ports.http("POST", "/overlaps", data=body)
        assert status == 400 and text in answer["error"], answer


async def test_http_errors_are_json() -> None:
    async with serving() as ports:
        assert (await ports.http("GET", "/nowhere"))[0] == 404
        assert (await ports.http("GET", "/overlaps"))[0] == 405
        status, answer = await ports.http("POST", "/overlaps", data=io.BytesIO(bytes(17 << 20)))
        assert status == 413 and answer["error"]


async def test_metrics_count_what_happened() -> None:
    async with serving(FakeEngine(worker_id=7)) as ports:
        for number in range(3):
            await ports.answers(prompt(f"r{number}", 2 * BLOCK))
        with pytest.raises(aio.AioRpcError):
            await ports.answers(prompt("r9", tokens=0))
        metrics = await ports.metrics()
        router = "dynamo_component_router"
        assert metrics[f"{router}_requests_started_total"] == 4
        assert metrics[f'{router}_requests_total{{status="ok"}}'] == 3
        assert metrics[f'{router}_requests_total{{status="invalid_argument"}}'] == 1
        assert metrics["dynamo_component_inflight_requests"] == 0
        assert metrics[f"{router}_time_to_first_token_seconds_count"] == 3
        assert metrics[f"{router}_inter_token_latency_seconds_count"] == 6
        assert metrics[f"{router}_input_sequence_tokens_sum"] == 6 * BLOCK
        assert metrics[f"{router}_output_sequence_tokens_sum"] == 6
        assert metrics[f'{router}_kv_hit_rate_bucket{{le="+Inf"}}'] == 3
        assert metrics[f"{router}_kv_hit_rate_sum"] == 2  # all but the first were expected to hit
        assert metrics["dynamo_router_overhead_seconds_count"] == 3
        assert 0 < metrics["dynamo_router_overhead_seconds_sum"] < 3
        worker = '{dp_rank="0",worker_id="7"}'
        assert metrics["dynamo_frontend_worker_active_decode_blocks" + worker] == 0
        assert metrics['dynamo_router_workers{state="ready"}'] == 1


async def test_metrics_tell_of_events_and_their_plane() -> None:
    async with serving(FakeEngine(worker_id=7), router=EVENTS) as ports:
        ports.server.router.apply_event(stored(WorkerWithDpRank(7), PROMPT))
        events = ports.server.pool.events
        assert events is not None
        await until(lambda: events.plane_state.value == "connected")
        metrics = await ports.metrics()
        applied = 'dynamo_component_kv_cache_events_applied{event_type="stored",status="ok"}'
        assert metrics[applied] == 1
        assert metrics['dynamo_router_index_blocks_total{change="stored",tier="device"}'] == 4
        assert metrics["dynamo_router_event_plane_connected"] == 1
        assert metrics["dynamo_router_events_undecodable_total"] == 0


async def test_output_blocks_count_where_they_are_tracked() -> None:
    async def long_answer(engine, request, context):  # type: ignore[no-untyped-def]
        for n in range(1, 3 * BLOCK + 1):
            message = chunk(request, n)
            message.chunk.completion_tokens = n
            yield message
        await engine.go.wait()

    engine = FakeEngine(long_answer, worker_id=7)
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, router_track_output_blocks=True)
    async with serving(engine, router=config) as ports:
        request = prompt(tokens=BLOCK)
        request.max_tokens = 10**6  # its end is far, so its blocks weigh all but fully
        call = asyncio.create_task(ports.answers(request))

        async def active_blocks() -> int:
            return (await ports.http("GET", "/workers"))[1]["workers"][0]["active_blocks"]

        async def grown() -> bool:
            return await active_blocks() >= 4

        await until(grown, 60.0)
        engine.go.set()
        await call
        await until(lambda: not ports.server.dispatcher.in_flight)
        assert await active_blocks() == 0
