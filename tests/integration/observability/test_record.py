"""A record has what clients saw, at each port, in each process; and serving goes on without it."""

import json
import os
import resource
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from support.fake_engine import FakeEngine, fail, prompt
from support.fronts.clients import clients_of_all, urls
from support.fronts.processes import serve_fronts
from support.observability.recorded import lines_of
from support.polling import until
from support.processes import command
from support.servers.openai_serving import openai_serving
from support.serving import serving

from dynamo_router.bench.traces.trace import read_record
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.mock_process import MockEnginesConfig
from dynamo_router.server.observability import ObservabilityConfig

ROUTER = KvRouterConfig(block_size=16, use_kv_events=False, seed=1)
WRITTEN = 'dynamo_router_record_lines_total{outcome="written"}'


def recording(path: Path, **more: Any) -> ObservabilityConfig:
    return ObservabilityConfig(record=str(path), **more)


async def test_a_grpc_client_sees_what_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    engine = FakeEngine(worker_id=7)
    session = (("x-session-id", "anna"), ("x-dynamo-slo-ttft-ms", "700"))
    async with serving(engine, observability=recording(path)) as ports:
        await ports.answers(prompt("one", 80), metadata=session)
        answers = await ports.answers(prompt("two", 80), metadata=session)
        with pytest.raises(grpc.RpcError):
            await ports.answers(prompt("long", 120))
        engine.script = fail(grpc.StatusCode.INTERNAL, "broken")
        with pytest.raises(grpc.RpcError):
            await ports.answers(prompt("three", 20))
        await ports.shows(WRITTEN, 3.0)
        assert (await ports.metrics())["dynamo_router_record_bytes_total"] == path.stat().st_size
    (header,), (one, two, three) = lines_of(path)
    assert (header["block_size"], header["engine_block_size"]) == (64, 16)
    assert [worker["worker"] for worker in header["workers"]] == ["7"]
    for line in (one, two):
        assert (line["input_length"], line["status"], line["worker"]) == (80, "ok", "7")
        assert line["output_length"] == answers[-1].complete.completion_tokens == 2
        assert line["cached_tokens"] == answers[-1].complete.cached_tokens
        assert 0 < line["ttft_ms"] <= line["e2e_ms"] and line["itl_ms"] >= 0
        assert line["ttft_objective_ms"] == 700
    assert one["hash_ids"] == two["hash_ids"] and one["session_id"] == two["session_id"]
    assert (one["overlap_tokens"], two["overlap_tokens"]) == (0, 80)
    assert two["foreseen_ttft_ms"] >= two["soonest_ttft_ms"] > 0
    assert (three["status"], "worker" in three, "ttft_ms" in three) == ("internal", True, False)
    assert "anna" not in json.dumps([header, one, two, three])
    assert not {"one", "two", "three"} & set(json.dumps([one, two, three]).split('"'))


@pytest.mark.parametrize("streams", [True, False])
async def test_an_openai_client_sees_what_is_recorded(tmp_path: Path, streams: bool) -> None:
    path = tmp_path / "a.jsonl"
    mocks = MockEnginesConfig(mockers=2, speedup_ratio=100.0)
    async with openai_serving(
        observability=recording(path), router=ROUTER, mock_engines=mocks, model_id="tiny"
    ) as served:
        usages = []
        for text in ("Hello " * 300, "Hello " * 300 + "again", "short"):
            body: dict[str, Any] = {
                "model": "tiny", "prompt": text, "max_tokens": 7, "stream": streams,
            }  # fmt: skip
            if streams:
                body["stream_options"] = {"include_usage": True}
            async with served.session.post(f"{served.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                events = (await answer.text()).split("\n")
            whole = events[0] if not streams else events[-5].removeprefix("data: ")
            usages.append(json.loads(whole)["usage"])
        await until(lambda: served.server.parts.recorder.lines["written"] == 3)  # type: ignore[union-attr]
    _, lines = lines_of(path)
    for line, usage in zip(lines, usages, strict=True):
        assert line["input_length"] == usage["prompt_tokens"]
        assert line["output_length"] == usage["completion_tokens"] == 7
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        assert line["cached_tokens"] == cached
        assert line["e2e_ms"] > 0 and ("ttft_ms" in line) is streams
    assert lines[1]["cached_tokens"] > 0
    assert lines[0]["timestamp"] < lines[1]["timestamp"] < lines[2]["timestamp"]


async def test_what_clients_leave_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    mocks = MockEnginesConfig(mockers=1, speedup_ratio=0.5)
    async with openai_serving(
        observability=recording(path), router=ROUTER, mock_engines=mocks, model_id="tiny"
    ) as served:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1000, "stream": True}
        answer = await served.session.post(f"{served.url}/v1/completions", json=body)
        assert answer.status == 200, await answer.text()
        await answer.content.readline()
        answer.close()
        await until(lambda: served.server.parts.recorder.lines["written"] == 1)  # type: ignore[union-attr]
    _, (line,) = lines_of(path)
    assert line["status"] == "cancelled" and 0 < line["output_length"] < 1000


async def test_a_full_disk_stops_no_request(tmp_path: Path) -> None:
    """A limit on the size of files fails writes as a full disk does."""
    path = tmp_path / "a.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with serving(FakeEngine(), observability=recording(path)) as ports:
        await ports.answers(prompt("one", 80))
        await ports.shows(WRITTEN, 1.0)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        try:
            for number in range(3):
                await ports.answers(prompt(f"r-{number}", 80))
            await ports.shows('dynamo_router_record_lines_total{outcome="disk_error"}', 3.0)
            assert path.stat().st_size == size
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await ports.answers(prompt("last", 80))
        await ports.shows(WRITTEN, 2.0)
    assert len(lines_of(path)[1]) == 2


async def test_nothing_is_recorded_by_default(tmp_path: Path) -> None:
    async with serving(FakeEngine()) as ports:
        await ports.answers(prompt("one"))
        assert ports.server.parts.recorder is None
        assert not [name for name in await ports.metrics() if "record" in name]


async def test_each_process_has_a_file_and_they_are_read_together(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.mkdir()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine())
        words = ("--no-kv-events", "--block-size", "16", "--record", str(record / "a.jsonl.gz"))
        served = await stack.enter_async_context(
            serve_fronts(tmp_path / "run", *words, *urls(engine))
        )
        clients = await clients_of_all(served, stack)
        before = len(engine.requests)
        for number, client in clients.items():
            for turn in range(2):
                await client.answers(prompt(f"p-{number}-{turn}", tokens=80))
        sent = len(engine.requests)
        assert sent >= before + 4
        await served.router.stop()
    files = sorted(str(path) for path in record.iterdir())
    assert [os.path.basename(path) for path in files] == ["a-0.jsonl.gz", "a-1.jsonl.gz"]
    found = read_record(files)
    assert [header.process for header in found.headers.values()] == [0, 1]
    long = [each for each in found.requests if each.input_length == 80]
    assert len(long) == 4 and len({each.hash_ids for each in long}) == 1
    times = [each.timestamp_ms for each in found.requests]
    assert times == sorted(times)


async def test_a_recorded_hour_is_simulated_analyzed_and_reported(tmp_path: Path) -> None:
    """The commands as processes, from `serve` with mock engines to what reads its record."""
    record = tmp_path / "a.jsonl.gz"
    async with command(
        tmp_path / "serve", "serve", "--port", "0", "--http-port", "0", "--http-frontend", "0",
        "--mockers", "2", "--model-id", "tiny", "--record", str(record),
    ) as router:  # fmt: skip
        ready = await router.says("dynamo-router ready")
        address = ready.partition("openai ")[2].split()[0]
        async with aiohttp.ClientSession() as session:
            for turn in range(12):
                text = "word " * (200 + 50 * (turn % 3))
                body = {"model": "tiny", "prompt": text, "max_tokens": 5}
                url = f"http://{address}/v1/completions"
                async with session.post(url, json=body) as answer:
                    assert answer.status == 200, await answer.text()
        assert await router.stop() == 0
    assert len(read_record([str(record)]).requests) == 12
    for words in (
        ("simulate", str(record), "--json", "out.json", "--workers", "2", "--no-progress"),
        ("analyze", str(record), "--json", "out.json"),
    ):
        async with command(tmp_path / words[0], *words) as done:
            assert await done.ended() == 0, done.text
        result = json.loads((tmp_path / words[0] / "out.json").read_text())
        assert result.get("requests", 12) == 12
        for run in result.get("runs", ()):
            assert run["requests"] == 12 and run["errors"] == 0


@pytest.mark.parametrize(
    ("record", "reason"),
    [(".", "is a folder: name a file in it"), ("none/a.jsonl", "no such folder")],
)
async def test_a_path_that_cannot_be_a_record_stops_the_start(
    tmp_path: Path, record: str, reason: str
) -> None:
    words = ("serve", "--port", "0", "--http-port", "0", "--record", str(tmp_path / record))
    async with command(tmp_path / "serve", *words) as router:
        assert await router.ended() == 1
        assert "dynamo-router: record: " in router.text and reason in router.text
