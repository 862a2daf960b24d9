"""The benchmark of the whole path: it runs from end to end, and says what it measured."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.load import (
    ChatClient,
    CompletionClient,
    Timing,
    Way,
    Ways,
    children_of,
    http_client,
    new_prompts,
    start_envoy,
)
from dynamo_router.bench.load.neighbours import NOISY, noise_words
from dynamo_router.bench.workbench.path import PathBenchConfig, run

PEER = os.environ.get("DYNAMO_PEER")
ENVOY = shutil.which("envoy")
SMG = os.environ.get("SMG") or shutil.which("smg")
BESIDE_ENVOY = [("envoy", "bare"), ("router", "envoy")] if ENVOY else []
BESIDE_SMG = [("frontend-text", "smg")] if SMG else []
BESIDE_DYNAMO = [("frontend", "dynamo"), ("router-dynamo", "dynamo")] if PEER else []


def test_a_router_that_records_beside_one_that_does_not(tmp_path: Path) -> None:
    target = tmp_path / "path.json"
    config = PathBenchConfig(
        requests=2, rounds=1, workers=1, tokens=40, concurrency=(1,), output_tokens=(1,),
        record=True, json=str(target),
    )  # fmt: skip
    assert run(config) == 0
    result = json.loads(target.read_text())
    names = ("router", "frontend", "frontend-text")
    compared = [(each["name"], each["beside"]) for each in result["ratios"]]
    assert compared == [(f"{name}-recorded", name) for name in names]
    assert len(result["rows"]) == 6


def test_what_is_not_compared_with_a_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="record"):
        PathBenchConfig(record=True, long=True)


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "path.json"
    config = PathBenchConfig(
        requests=4, rounds=2, workers=2, tokens=40, concurrency=(1, 2), output_tokens=(1, 3),
        dynamo=PEER, envoy=ENVOY, smg=SMG, json=str(target),
    )  # fmt: skip
    assert run(config) == 0
    result = json.loads(target.read_text())
    ways = ["direct", "bare", "bare-http2", *(["envoy"] if ENVOY else []), "router", "frontend"]
    ways += ["frontend-text", "smg"] if SMG else []
    ways += ["dynamo", "router-dynamo"] if PEER else []
    loads = [(1, 1), (1, 2), (3, 1), (3, 2)]
    found = [(row["output_tokens"], row["concurrency"], row["name"]) for row in result["rows"]]
    assert found == [(*load, way) for load in loads for way in ways]
    for row in result["rows"]:
        assert row["cpu_us_per_request"] > 0 and row["requests_per_s"] > 0
        assert row["engine_cpu_us_per_request"] > 0 and len(row["cpu_us_rounds"]) == 2
        assert 0 < row["ttft_ms"]["p50"] <= row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
    compared = {(each["name"], each["beside"]) for each in result["ratios"]}
    assert all({"cpu", "requests_per_s", "added_p50"} <= each.keys() for each in result["ratios"])
    ours = {("router", "bare"), ("bare-http2", "bare")}
    assert compared == {*ours, *BESIDE_ENVOY, *BESIDE_SMG, *BESIDE_DYNAMO}
    said = capsys.readouterr().out
    assert ("too noisy" in said) is result["too_noisy"] is (result["others_cpu_share"] > NOISY)


def test_chats_that_grow(tmp_path: Path) -> None:
    target = tmp_path / "long.json"
    config = PathBenchConfig(
        requests=2, rounds=1, workers=1, output_tokens=(1,), long=True, long_tokens=(300, 3000),
        turn_tokens=100, smg=SMG, json=str(target),
    )  # fmt: skip
    assert run(config) == 0
    result = json.loads(target.read_text())
    ways = ["frontend", *(["smg"] if SMG else [])]
    loads = [(300, 300), (400, 100), (3000, 3000), (3100, 100)]
    found = [(row["prompt_tokens"], row["new_tokens"], row["name"]) for row in result["rows"]]
    assert found == [(*load, way) for load in loads for way in ways]
    assert all(row["cpu_us_per_request"] > 0 for row in result["rows"])
    compared = {(each["name"], each["beside"]) for each in result["ratios"]}
    assert compared == ({("frontend", "smg")} if SMG else set())


async def test_a_turn_repeats_what_its_chat_began_with() -> None:
    bodies: list[dict[str, Any]] = []
    client = ChatClient("127.0.0.1:1", "tiny")

    async def send(request: bytes) -> Timing:
        bodies.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        return Timing(1.0, 1.0)

    client._http.send = send  # type: ignore[method-assign]
    first, following = client.turns(400, 50, 1)
    for ask in (first, first, following, following):
        await ask()
    begun, other, grown, last = (body["messages"] for body in bodies)
    assert begun != other and grown[:1] == begun and last[:1] == other
    assert [message["role"] for message in grown] == ["user", "assistant", "user"]
    assert 400 <= len(begun[0]["content"]) < 420 and 50 <= len(grown[2]["content"]) < 70


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "tokens", "chars", "turn_tokens"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PathBenchConfig(**{key: 0})
    assert caught.value.key == key


@pytest.mark.parametrize("key", ["concurrency", "output_tokens", "long_tokens"])
@pytest.mark.parametrize("values", [(), (4, 0)])
def test_loads_that_are_none_are_refused(key: str, values: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        PathBenchConfig(**{key: values})
    assert caught.value.key == key


def test_a_python_without_dynamo_is_told(tmp_path: Path) -> None:
    config = PathBenchConfig(
        requests=1, rounds=1, workers=1, concurrency=(1,), output_tokens=(1,), dynamo="/bin/false"
    )
    with pytest.raises(RouterError, match="Dynamo ended while it started"):
        run(config)


def test_what_is_no_smg_is_told() -> None:
    config = PathBenchConfig(
        requests=1, rounds=1, workers=1, concurrency=(1,), output_tokens=(1,), smg="/bin/false"
    )
    with pytest.raises(RouterError, match="SMG ended while it started"):
        run(config)


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/envoy"])
async def test_what_is_no_envoy_is_told(program: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(RouterError, match="Envoy (was not started|ended before it was ready)"):
            await start_envoy(program, ["127.0.0.1:1"], 30.0, stack)


@pytest.mark.parametrize("share", [0.0, 2 * NOISY])
def test_it_says_when_neighbours_were_measured_too(share: float) -> None:
    told = noise_words({"others_cpu_share": share, "too_noisy": share > NOISY})
    assert ("too noisy" in " ".join(told)) is (share > NOISY)


WHOLE = b"data: x\n\ndata: [DONE]\n\n"


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


async def completed(answers: list[bytes], asks: int) -> list[Any]:
    """What comes of so many completions, one after another, of a server with these answers."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while answers:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except asyncio.IncompleteReadError:
                break  # the client has left
            await reader.readexactly(int(head.rpartition("Content-Length: ")[2]))
            data = answers.pop(0)
            for at in range(0, len(data), 7):  # however it is cut
                writer.write(data[at : at + 7])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = CompletionClient(address, "tiny")
    ask: Callable[[], Awaitable[Any]] = client.asks(new_prompts(3), 1)
    try:
        found = [await asyncio.gather(ask(), return_exceptions=True) for _ in range(asks)]
        return [connections, *(each for (each,) in found)]
    finally:
        client.close()
        server.close()
        await server.wait_closed()


async def test_completions_share_a_connection() -> None:
    connections, *timings = await completed([answer("200 OK", WHOLE)] * 3, 3)
    assert connections == 1
    assert all(0 < timing.first_us <= timing.last_us for timing in timings)


async def test_a_connection_that_was_long_unused_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_client, "IDLE_S", 0.0)
    connections, *timings = await completed([answer("200 OK", WHOLE)] * 2, 2)
    assert connections == 2 and all(timing.last_us > 0 for timing in timings)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer("500 no", b"boom"), "the answer is 500: boom"),
        (answer("200 OK", b"data: x\n\n"), "the answer is 200: data: x"),
        (answer("200 OK", WHOLE)[:-5], "the connection was closed"),
    ],
)
async def test_an_answer_that_is_not_whole_fails(given: bytes, reason: str) -> None:
    _, error = await completed([given], 1)
    assert isinstance(error, RouterError) and reason in str(error)


async def test_children_are_found() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input('x' * 9)", stdin=-1)
    try:
        assert "input" in children_of(os.getpid())[child.pid]
    finally:
        child.kill()
        await child.wait()
    assert child.pid not in children_of(os.getpid())


async def test_what_is_measured_has_a_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, pinned = sorted(os.sched_getaffinity(0)), dict[int, set[int]]()
    sleeper = [sys.executable, "-c", "input()"]
    pipe = asyncio.subprocess.PIPE
    gateway = await asyncio.create_subprocess_exec(*sleeper, stdin=pipe)
    engines = await asyncio.create_subprocess_exec(*sleeper, stdin=pipe)
    ways = Ways()
    ways.add("direct", Way("", engines.pid, engines.pid), {})
    ways.add("gateway", Way("", gateway.pid, engines.pid), {})
    try:
        monkeypatch.setattr(os, "sched_setaffinity", pinned.__setitem__)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {cores[0], cores[0] + 1})
        ways.pin()
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {cores[0]})
        with pytest.raises(RouterError, match="only one core"):
            ways.pin()
    finally:
        for process in (gateway, engines):
            await process.communicate(b"\n")
    assert pinned[gateway.pid] == {cores[0]}
    assert pinned[engines.pid] == pinned[os.getpid()] == {cores[0] + 1}
