"""Two models, each updated to other workers while requests go on: real processes, a file store."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.polling import until
from support.processes import Command, command

MODELS = ("a", "b")
CLIENTS = 6
"""that ask for each model, one request after the other"""
_WORKER = re.compile(r"engine \d+: \S+ worker (\d+)")


class Load:
    """Clients that stream answers of all models until it is stopped; what became of each."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.errors: list[Any] = []
        self.answered: dict[str, Counter[int]] = {model: Counter() for model in MODELS}
        self._ended = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS * len(MODELS)):
                group.create_task(self._client(number))
            try:
                yield
            finally:
                self._ended = True

    async def more(self, count: int) -> Counter[int]:
        """Who answered from now on, once so many requests more were answered."""
        before = self._all()
        await until(lambda: self.errors or (self._all() - before).total() >= count, 30.0)
        return self._all() - before

    def _all(self) -> Counter[int]:
        return sum(self.answered.values(), Counter())

    async def _client(self, number: int) -> None:
        model, turn = MODELS[number % len(MODELS)], 0
        while not self._ended:
            turn += 1
            try:
                self.answered[model][await self._ask(model, f"client {number} turn {turn}")] += 1
            except Exception as error:
                self.errors.append(error)
                return

    async def _ask(self, model: str, prompt: str) -> int:
        """The worker of one streamed answer, which is whole."""
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "stream": True}
        headers = {"x-dynamo-explain": "1"}
        url = f"{self._url}/v1/completions"
        async with self._session.post(url, json=body, headers=headers) as answer:
            text = await answer.text()
        assert answer.status == 200, text
        assert text.endswith("data: [DONE]\n\n"), text
        events = [json.loads(line[6:]) for line in text.splitlines() if line[:7] == "data: {"]
        assert not [event for event in events if "error" in event], text
        reasons = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
        assert reasons == ["length"], text
        (told,) = [event["nvext"] for event in events if event.get("nvext")]
        worker: int = told["worker_id"]["decode_worker_id"]
        return worker


def workers_of(mocker: Command) -> set[int]:
    return {int(found) for found in _WORKER.findall(mocker.text)}


async def generation(stack: AsyncExitStack, folder: Path, block_size: int) -> dict[str, Command]:
    """Two engines of each model, ready: their cards are of one generation."""
    started = {}
    for model in MODELS:
        words = (
            f"mocker --discovery file --workers 2 --port 0 --model-id {model} --vocab-size 4096"
            f" --block-size {block_size} --num-gpu-blocks 512 --speedup-ratio 10"
        )
        mocker = command(folder / f"{model}{block_size}", *words.split())
        started[model] = await stack.enter_async_context(mocker)
    for mocker in started.values():
        await mocker.says("ready")
    return started


async def shares(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, int], float]:
    """By model and block size, the pools that are there."""
    async with session.get(f"{url}/pools") as answer:
        pools = (await answer.json())["pools"]
    return {(pool["model"], pool["block_size"]): pool["share"] for pool in pools}


async def wait_for(session: aiohttp.ClientSession, url: str, wanted: dict[Any, float]) -> None:
    async def shown() -> bool:
        return await shares(session, url) == wanted

    await until(shown, 60.0)


async def test_traffic_moves_to_the_new_workers_of_its_model_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "kv"))
    async with AsyncExitStack() as stack:
        old = await generation(stack, tmp_path, 16)
        words = "frontend --discovery file --http-port 0 --probe-interval-s 0.5"
        frontend = await stack.enter_async_context(command(tmp_path / "front", *words.split()))
        line = await frontend.says("dynamo-router ready")
        assert "models a, b" in line
        url = f"http://{line.partition('openai ')[2].split()[0]}"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await wait_for(session, url, {("a", 16): 2, ("b", 16): 2})
        load = Load(session, url)
        async with load.running():
            assert (await load.more(20)).keys() <= workers_of(old["a"]) | workers_of(old["b"])
            new = await generation(stack, tmp_path, 32)
            both = {(model, size): 2.0 for model in MODELS for size in (16, 32)}
            await wait_for(session, url, both)
            seen = await load.more(100)
            for mocker in (*old.values(), *new.values()):
                assert seen.keys() & workers_of(mocker), "a pool got nothing of its share"
            for mocker in old.values():
                mocker.send(signal.SIGTERM)
            for mocker in old.values():
                assert await mocker.ended() == 0
            await wait_for(session, url, {("a", 32): 2, ("b", 32): 2})
            assert (await load.more(20)).keys() <= workers_of(new["a"]) | workers_of(new["b"])
        assert load.errors == []
        for model in MODELS:
            assert load.answered[model].keys() <= workers_of(old[model]) | workers_of(new[model])
            assert load.answered[model].total() > 50
        assert await frontend.stop() == 0
