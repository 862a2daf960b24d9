"""The client of the hostile benchmark that behaves, as a process: requests at a steady rate, each
noted with how it went.

Run with ADDRESS TOKEN_FILE RATE FILE; an address http://HOST:PORT is of the OpenAI door. Prints
"ready" after its first answer, and appends a Sample to FILE for each further one.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Self

import aiohttp
import msgspec
import numpy as np
import uvloop

from ...load import LoadClient, TargetAccess, encode_generate
from .cells import Sample
from .engines import TOKENS

TIMEOUT_S = 5.0
PROMPT_TOKENS = 512
VOCABULARY = 32_000


class OpenAIClient:
    """Asks as LoadClient does, at the OpenAI door."""

    def __init__(self, url: str, access: TargetAccess) -> None:
        headers = {key.title(): value for key, value in access.metadata()}
        self._session = aiohttp.ClientSession(
            url, headers=headers, connector=aiohttp.TCPConnector(limit=0)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def ask(self, prompt: list[int]) -> tuple[float | None, float, str]:
        """(time to the first token, longest gap, in ms; OK or what went wrong)."""
        body = {"model": "mock", "prompt": prompt, "max_tokens": TOKENS, "stream": True}
        times = [time.monotonic()]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._session.post("/v1/completions", json=body) as answer:
                    async for line in answer.content:
                        if line.startswith(b"data: {"):
                            times.append(time.monotonic())
                    code = "OK" if answer.status == 200 and len(times) > 1 else str(answer.status)
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            return None, 0.0, type(error).__name__
        gaps = [after - before for before, after in pairwise(times[1:])]
        first = (times[1] - times[0]) * 1e3 if code == "OK" else None
        return first, max(gaps, default=0.0) * 1e3, code


async def main(address: str, token_file: str, rate: str, file: str) -> None:
    """Ask until the process is ended."""
    random = np.random.default_rng(1)
    tasks: set[asyncio.Task[None]] = set()
    access = TargetAccess(token_file=token_file)
    openai = address.startswith("http:")
    async with OpenAIClient(address, access) if openai else LoadClient(address, access) as client:
        with Path(file).open("wb", buffering=0) as notes:
            number = 0
            began = time.monotonic()
            while True:
                tokens = random.integers(3, VOCABULARY, PROMPT_TOKENS, np.uint32)
                ask = _asking(client, f"well-behaved-{number}", tokens)
                if number == 0:
                    await ask()
                    print("ready", flush=True)
                    began = time.monotonic()
                else:
                    task = asyncio.create_task(_ask(ask, notes))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                number += 1
                # By the clock: a request that is late delays none of those after it.
                await asyncio.sleep(max(0.0, began + number / float(rate) - time.monotonic()))


Asking = Callable[[], Awaitable[tuple[float | None, float, str]]]


def _asking(client: LoadClient | OpenAIClient, name: str, tokens: Any) -> Asking:
    if isinstance(client, OpenAIClient):
        return partial(client.ask, tokens.tolist())

    async def ask() -> tuple[float | None, float, str]:
        body = encode_generate(name, tokens, TOKENS)
        outcome = await client.generate(body, TOKENS, TIMEOUT_S)
        return outcome.ttft_ms, max(outcome.itl_ms, default=0.0), outcome.code

    return ask


async def _ask(ask: Asking, notes: IO[bytes]) -> None:
    started = time.monotonic()
    first_ms, gap_ms, code = await ask()
    waited = (time.monotonic() - started) * 1e3
    sample = Sample(
        started=started,
        ms=waited if first_ms is None else first_ms,
        gap_ms=gap_ms,
        code=code,
    )
    notes.write(msgspec.json.encode(sample) + b"\n")


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
