"""What one process serves, several serve: OpenAI clients, mock engines, discovery, sessions."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import prompt
from support.fronts.clients import clients_of_all, engine, eventually, urls
from support.fronts.processes import LOOKS, Fronts, frontend_fronts, serve_fronts
from support.processes import children_of, command, http_json
from support.servers.http_engine import WHOLE, HttpEngine

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")
CHAT = {"messages": [{"role": "user", "content": "Which way?"}], "max_tokens": 4}
CHATS = 12


async def chat_until_both_have_answered(served: Fronts, address: str, model: str) -> None:
    """Chats over connections of their own, which reach all processes."""
    chats = 0

    async def both() -> bool:
        nonlocal chats
        for _ in range(CHATS):
            answer = await served.at(address, "/v1/chat/completions", {"model": model, **CHAT})
            assert answer["choices"][0]["message"]["content"]
            chats += 1
        return all(front["requests"] for front in await served.fronts())

    await eventually(both)
    assert sum(front["requests"] for front in await served.fronts()) == chats
    health = await http_json(address, "/health")
    assert {front["pid"] for front in health["fronts"]} == set((await served.pids()).values())


async def test_mock_engines_and_openai_clients(tmp_path: Path) -> None:
    words = ("--mockers", "2", "--http-frontend", "0", "--speedup-ratio", "100")
    async with serve_fronts(tmp_path, *words) as served:
        found = re.search(r"openai (\S+)", served.router.text)
        assert found is not None
        (model,) = {each["id"] for each in (await http_json(found[1], "/v1/models"))["data"]}
        await chat_until_both_have_answered(served, found[1], model)

        async def indexed() -> bool:
            looks = [await served.workers() for _ in range(LOOKS)]
            return all(len(look) == 2 for look in looks)

        await eventually(indexed)
        pids = await served.pids()
        engines = set(children_of(served.router.pid)) - set(pids.values())
        os.kill(pids[0], signal.SIGKILL)

        async def back() -> bool:
            return (await served.pids()).get(0, pids[0]) != pids[0]

        await eventually(back)
        again = set(children_of(served.router.pid)) - set((await served.pids()).values())
        assert again == engines, "the engines outlive the process"
        assert await served.router.stop() == 0


async def test_the_frontend_of_models_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "store"))
    async with AsyncExitStack() as stack:
        words = ("mocker", "--discovery", "file", "--model-id", "tiny", "--vocab-size", "4096")
        engines = await stack.enter_async_context(
            command(tmp_path / "engines", *words, "--port", "0", "--speedup-ratio", "100")
        )
        await engines.says("ready")
        file = tmp_path / "settings.toml"
        file.write_text("")
        words = ("--discovery", "file", "--config", str(file))
        served = await stack.enter_async_context(frontend_fronts(tmp_path / "frontend", *words))

        async def there() -> bool:
            looks = [await http_json(served.http, "/v1/models") for _ in range(LOOKS)]
            return all(len(look["data"]) == 1 for look in looks)

        await eventually(there)
        await chat_until_both_have_answered(served, served.http, "tiny")
        metrics = await served.metrics()
        requests = [
            v
            for n, v in metrics.items()
            if n.startswith("dynamo_component_router_requests_started")
        ]
        assert sum(requests) == sum(front["requests"] for front in await served.fronts())
        looks = [await http_json(served.http, "/dashboard/state") for _ in range(LOOKS)]
        assert len({look["process"] for look in looks}) == 1
        file.write_text("max_attempts = 2\n")
        status, answer = await served.change("/reload", {})
        assert status == 200 and list(answer["changed"]) == ["max_attempts"]
        assert (await served.change("/reload", {}))[1]["changed"] == {}
        assert await served.router.stop() == 0


async def test_a_worker_of_a_model_is_changed_in_all_processes_and_those_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "store"))
    async with AsyncExitStack() as stack:
        words = ("mocker", "--discovery", "file", "--model-id", "tiny", "--workers", "2")
        engines = await stack.enter_async_context(
            command(tmp_path / "engines", *words, "--vocab-size", "4096", "--port", "0")
        )
        await engines.says("ready")
        words = ("--discovery", "file", "--admin-port", "0")
        served = await stack.enter_async_context(frontend_fronts(tmp_path / "frontend", *words))
        found = re.search(r" admin (\S+)", served.router.text)
        assert found is not None
        admin = found[1]

        async def states() -> list[dict[str, tuple[str, float]]]:
            looks = [await served.workers() for _ in range(LOOKS)]
            return [
                {str(each["worker_id"]): (each["state"], each["weight"]) for each in look}
                for look in looks
            ]

        ready = ("ready", 1.0)

        async def are(*expected: tuple[str, float]) -> bool:
            return all(sorted(look.values()) == sorted(expected) for look in await states())

        await eventually(lambda: are(ready, ready))
        one, other = (await states())[0]
        change = {"weight": 0.5}
        assert (await served.change(f"/workers/{one}", change, "PATCH", admin))[0] == 200
        path = f"/workers/{other}/drain"
        status, drained = await served.change(path, {"deadline_s": 5}, address=admin)
        assert status == 200 and drained["drained"] and "warning" not in drained
        changed = ("draining", 1.0), ("ready", 0.5)
        assert await are(*changed)
        pids = await served.pids()
        os.kill(pids[1], signal.SIGKILL)

        async def back() -> bool:
            return (await served.pids()).get(1, pids[1]) != pids[1]

        await eventually(back)
        await eventually(lambda: are(*changed))
        assert (await served.change("/workers/7/drain", {}, address=admin))[0] == 404


async def test_a_router_that_finds_its_workers_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "store"))
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(
            serve_fronts(tmp_path / "router", "--discovery", "file", *SERVE)
        )
        words = ("mocker", "--discovery", "file", "--model-id", "tiny", "--block-size", "16")
        await stack.enter_async_context(command(tmp_path / "engines", *words, "--port", "0"))

        async def found() -> bool:
            looks = [await served.workers() for _ in range(LOOKS)]
            return all([each["state"] for each in look] == ["ready"] for look in looks)

        await eventually(found)
        assert len(await served.answers(prompt("found"))) >= 2


async def test_a_session_stays_with_its_worker_at_all_processes(tmp_path: Path) -> None:
    words = (*SERVE, "--mode", "round-robin", "--router-session-affinity-ttl-secs", "60")
    async with engine() as one, engine() as two, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *words, *urls(one, two)))
        clients = await clients_of_all(served, stack)
        session = (("x-dynamo-session-id", "s"),)

        async def worker(number: int, name: str) -> str:
            call = clients[number].call(prompt(name), metadata=session)
            async for _ in call:
                pass
            found = {key: value for key, value in await call.trailing_metadata()}
            return str(found["x-dynamo-worker-id"])

        first = await worker(0, "first")

        async def heard() -> bool:
            looks = [await served.workers() for _ in range(LOOKS)]
            return all(sum(each["sessions"] for each in look) == 1 for look in looks)

        await eventually(heard)
        found = [await worker(turn % 2, f"turn-{turn}") for turn in range(6)]
        assert set(found) == {first}


async def test_the_key_of_engines_that_ask_for_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-engines\n")
    file.chmod(0o600)
    async with HttpEngine({"/v1/completions": WHOLE}) as one:
        words = (*SERVE, "--worker-api-key-file", str(file), "--worker", one.url)
        async with serve_fronts(tmp_path / "router", *words) as served:
            answers = [served.answers(prompt(f"asked-{number}", 8)) for number in range(4)]
            for *_, last in await asyncio.gather(*answers):
                assert list(last.complete.output_token_ids) == [11, 12]
        shown: set[Any] = {asked.headers.get("authorization") for asked in one.asked}
        assert shown == {"Bearer key-of-engines"}
