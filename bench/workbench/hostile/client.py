"""The client of the hostile benchmark that behaves, as a process: requests at a steady rate, each
noted with how it went.

Run with ADDRESS TOKEN_FILE RATE FILE. Prints "ready" after its first answer, and appends a Sample
to FILE for each further one.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import uvloop

from ...load import LoadClient, TargetAccess, encode_generate
from .cells import Sample
from .engines import TOKENS

TIMEOUT_S = 5.0
PROMPT_TOKENS = 512
VOCABULARY = 32_000


async def main(address: str, token_file: str, rate: str, file: str) -> None:
    """Ask until the process is ended."""
    random = np.random.default_rng(1)
    tasks: set[asyncio.Task[None]] = set()
    async with LoadClient(address, TargetAccess(token_file=token_file)) as client:
        with Path(file).open("wb", buffering=0) as notes:
            number = 0
            began = time.monotonic()
            while True:
                tokens = random.integers(3, VOCABULARY, PROMPT_TOKENS, np.uint32)
                body = encode_generate(f"well-behaved-{number}", tokens, TOKENS)
                if number == 0:
                    await client.generate(body, TOKENS, TIMEOUT_S)
                    print("ready", flush=True)
                    began = time.monotonic()
                else:
                    task = asyncio.create_task(_ask(client, body, notes))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                number += 1
                # By the clock: a request that is late delays none of those after it.
                await asyncio.sleep(max(0.0, began + number / float(rate) - time.monotonic()))


async def _ask(client: LoadClient, body: bytes, notes: IO[bytes]) -> None:
    started = time.monotonic()
    outcome = await client.generate(body, TOKENS, TIMEOUT_S)
    waited = (time.monotonic() - started) * 1e3
    sample = Sample(
        started=started,
        ms=waited if outcome.ttft_ms is None else outcome.ttft_ms,
        gap_ms=max(outcome.itl_ms, default=0.0),
        code=outcome.code,
    )
    notes.write(msgspec.json.encode(sample) + b"\n")


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
