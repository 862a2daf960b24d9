"""What the log says of requests: of those that failed, and of all if that is asked for."""

import asyncio
from typing import Any

import grpc
from grpc import aio
from structlog.testing import capture_logs
from support.calls import too_late
from support.fake_engine import FakeEngine, fail, hang, prompt
from support.rig import Rig
from support.serving import serving

from dynamo_router.base.clock import SystemClock
from dynamo_router.process.logs import UNLIMITED
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch import AccessLog
from dynamo_router.server.dispatch.observers import NoObserver
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.trtllm_proto import SERVICE

Code = grpc.StatusCode


def named(logs: list[Any], event: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == event]


async def test_each_failed_request_has_a_line_with_who_was_tried_and_why_not() -> None:
    engines = [FakeEngine(fail(Code.UNAVAILABLE, "full of cats"), worker_id=n) for n in (1, 2)]
    async with Rig(*engines) as rig:
        with capture_logs() as logs:
            assert (await rig.refusal(prompt("mine")))[0] is Code.UNAVAILABLE
            await rig.settled()
    (line,) = named(logs, "request failed")
    assert (line["request_id"], line["status"], line["log_level"]) == (
        "mine", "UNAVAILABLE", "warning",
    )  # fmt: skip
    assert sorted(line["attempts"]) == ["1:unavailable", "2:unavailable"]
    assert line["details"] == "full of cats"


async def test_a_request_that_no_worker_was_there_for_has_a_line_too() -> None:
    async with Rig() as rig:
        with capture_logs() as logs:
            code, said = await rig.refusal(prompt("nobody"))
            await rig.settled()
    (line,) = named(logs, "request failed")
    assert (line["request_id"], line["status"], line["attempts"]) == ("nobody", code.name, [])
    assert line["details"] == said


async def test_a_deadline_names_the_worker_that_let_it_pass() -> None:
    async with Rig(FakeEngine(hang, worker_id=9)) as rig:
        with capture_logs() as logs:
            code, _ = await too_late(
                lambda seconds: rig.refusal(prompt("late"), timeout=seconds),
                lambda: rig.engines[0].requests,
            )
            assert code is Code.DEADLINE_EXCEEDED
            await rig.settled()
    *_, line = named(logs, "request failed")
    assert (line["status"], line["attempts"]) == ("DEADLINE_EXCEEDED", ["9:deadline"])


async def test_what_clients_do_themselves_is_no_failure() -> None:
    async with Rig(FakeEngine(hang)) as rig:
        (engine,) = rig.engines
        with capture_logs() as logs:
            call = rig.call(prompt("left"))
            await rig.running(engine)
            call.cancel()
            await rig.settled()
            assert (await rig.refusal(b"junk"))[0] is Code.INVALID_ARGUMENT
        await asyncio.wait([asyncio.ensure_future(_end(call))])
    assert not named(logs, "request failed")


async def _end(call: aio.UnaryStreamCall[Any, Any]) -> None:
    try:
        await call.code()
    except asyncio.CancelledError:
        pass


async def test_an_access_log_has_a_line_for_each_request() -> None:
    access = AccessLog(SystemClock(), NoObserver())
    async with Rig(FakeEngine(worker_id=7), observer=access) as rig:
        with capture_logs() as logs:
            await rig.answers(prompt("good", 12))
            await rig.refusal(b"junk")
            await rig.settled()
    good, bad = named(logs, "request ended")
    assert (good["request_id"], good["status"], good["worker_id"]) == ("good", "OK", 7)
    assert (good["prompt_tokens"], good["messages"], good["attempts"]) == (12, 3, [])
    assert 0 <= good["queue_s"] <= good["duration_s"]
    assert (bad["status"], "request_id" in bad) == ("INVALID_ARGUMENT", False)
    assert bad["route"] == f"/{SERVICE}/Generate" and bad["error"]
    assert good[UNLIMITED] and bad[UNLIMITED]


async def test_what_the_reader_refuses_has_its_id_in_the_access_log() -> None:
    access = AccessLog(SystemClock(), NoObserver())
    # field 4, a message of its own that is cut off inside
    garbled = prompt("garbled").SerializeToString() + b"\x22\x02\x0a\x05"
    async with Rig(FakeEngine(), observer=access) as rig:
        rig.dispatcher.reader.limits = CallerLimits(max_prompt_tokens=100, max_id_bytes=8)
        with capture_logs() as logs:
            for refused in (prompt("empty", 0), prompt("long", 101), prompt("abcdefghi"), garbled):
                assert (await rig.refusal(refused))[0] is Code.INVALID_ARGUMENT
    ids = [line["request_id"] for line in named(logs, "request ended")]
    assert ids == ["empty", "long", "abcdefgh", "garbled"]


async def test_the_access_log_is_off_unless_asked_for() -> None:
    for wanted in (False, True):
        seen = ObservabilityConfig(access_log=wanted)
        async with serving(FakeEngine(), observability=seen) as ports:
            with capture_logs() as logs:
                await ports.answers(prompt("one"))
                while not (await ports.metrics()).get(ENDED):
                    pass
        lines = [line["route"] for line in named(logs, "request ended")]
        assert lines.count("/trtllm.TrtllmService/Generate") == wanted
        assert set(lines) <= {"/trtllm.TrtllmService/Generate", "/metrics"}


async def test_a_call_that_is_refused_for_its_headers_has_a_line_and_is_counted() -> None:
    route = f"/{SERVICE}/Generate"
    twice = (("authorization", "Bearer one"), ("authorization", "Bearer two"))
    async with serving(FakeEngine(), observability=ObservabilityConfig(access_log=True)) as ports:
        with capture_logs() as logs:
            for path in (route, "/no.Such/Method"):
                call = ports.channel.unary_stream(path, None, None)(b"", metadata=twice)
                assert await call.code() is Code.INVALID_ARGUMENT
        hits = await ports.metrics()
    first, other = named(logs, "request ended")
    assert (first["status"], first["route"], first["client"]) == (
        "INVALID_ARGUMENT", route, "127.0.0.1",
    )  # fmt: skip
    assert first["error"] == "a call has authorization once at most" and first[UNLIMITED]
    assert other["route"] == "", "what a client has written is in no line"
    assert hits['dynamo_router_limits_hit_total{limit="client_violations"}'] == 2


ENDED = 'dynamo_component_router_requests_total{status="ok"}'
