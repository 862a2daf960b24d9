"""Mock engines as processes that are killed and come back, and streams whose tokens are checked."""

import asyncio
import json
import random
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from grpc import aio
from support.free_port import free_ports
from support.polling import until
from support.processes import Command, command

from dynamo_router.engines.mocker.sampling import plan_output
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.frontend.processor import ModelText
from dynamo_router.workers.trtllm_proto import SERVICE, pb

VOCABULARY, EOS = 4096, 2


class KilledEngines:
    """Engines on ports of their own, ready from `async with` on."""

    def __init__(
        self, folder: Path, count: int, *words: str, until_killed: Sequence[str] = ()
    ) -> None:
        """All have the settings `words`, and those that were not killed yet `until_killed`."""
        self._folder, self._words, self._until_killed = folder, words, until_killed
        self._ports = free_ports(count)
        self._running: list[Command | None] = [None] * count
        self._stack = AsyncExitStack()
        self.kills = 0

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"grpc://127.0.0.1:{port}" for port in self._ports)

    async def __aenter__(self) -> "KilledEngines":
        first = self._until_killed
        await asyncio.gather(*(self._start(number, *first) for number in range(len(self._ports))))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def kill(self, number: int) -> None:
        """End a process at once, and start it anew."""
        running = self._running[number]
        assert running is not None
        self.kills += 1
        await running.stop(signal.SIGKILL)
        await self._start(number)

    async def _start(self, number: int, *more: str) -> None:
        words = f"mocker --port {self._ports[number]} --model-id tiny --vocab-size {VOCABULARY}"
        engine = command(self._folder / f"engine{number}", *words.split(), *self._words, *more)
        running = self._running[number] = await self._stack.enter_async_context(engine)
        await running.says("ready")


class Streams:
    """Streams of prompts of their own; what is wrong with each of them is in `wrong`."""

    def __init__(self, tokens: int, seed: int = 1) -> None:
        self._tokens = tokens
        self._rng = random.Random(seed)
        self.wrong: list[str] = []
        self.whole = 0
        self.begun = 0

    def new_prompt(self) -> list[int]:
        return [self._rng.randrange(3, VOCABULARY) for _ in range(self._rng.randrange(20, 60))]

    def expected(self, prompt: list[int]) -> list[int]:
        asked = EngineRequest(
            request_id="", token_ids=np.array(prompt, np.uint32), max_tokens=self._tokens
        )
        found: list[int] = plan_output(
            asked, vocab_size=VOCABULARY, ends=frozenset({EOS})
        ).tokens.tolist()
        return found

    async def of_grpc(self, channel: aio.Channel, name: str) -> None:
        """One stream over TrtllmService."""
        prompt = self.new_prompt()
        request = pb.GenerateRequest(request_id=name, max_tokens=self._tokens, streaming=True)
        request.tokenized.input_token_ids.extend(prompt)
        call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        found: list[int] = []
        last: Any = None
        try:
            async for message in call(request.SerializeToString()):
                response = pb.GenerateResponse.FromString(message)
                self._note(not found)
                found += response.chunk.token_ids
                last = response.complete if response.HasField("complete") else last
        except aio.AioRpcError as error:
            self.wrong.append(f"{name}: {error.code().name} {error.details()}")
            return
        expected = self.expected(prompt)
        whole = [] if last is None else list(last.output_token_ids)
        counts = None if last is None else (last.prompt_tokens, last.completion_tokens)
        self._judge(name, (found, whole), (expected, expected))
        self._judge(name, counts, (len(prompt), len(expected)))
        self.whole += 1

    async def of_text(
        self, session: aiohttp.ClientSession, url: str, text: ModelText, name: str
    ) -> None:
        """One stream of OpenAI's API, with its usage."""
        prompt = self.new_prompt()
        body = {"model": "tiny", "prompt": prompt, "max_tokens": self._tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        said, usage, reasons = "", {}, []
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                self.wrong.append(f"{name}: {await answer.text()}")
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    self.wrong.append(f"{name}: {event}")
                    return
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    self._note(not said)
                    said += choice["text"]
                    reasons += [choice["finish_reason"]] * bool(choice["finish_reason"])
        expected = self.expected(prompt)
        decoder = text.detokenizer()
        shown = decoder.feed(expected) + decoder.flush()
        self._judge(name, (said, reasons), (shown, ["length"]))
        told = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        self._judge(name, told, (len(prompt), len(expected)))
        self.whole += 1

    async def all_begun(self, count: int) -> None:
        """Wait until so many of them had their first token."""
        await until(lambda: self.wrong or self.begun >= count, 60.0)

    def _note(self, first: bool) -> None:
        self.begun += first

    def _judge(self, name: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong.append(f"{name}: {found} is not {expected}")
