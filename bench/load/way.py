"""Ways to the same engines, measured in turn: CPU of processes, requests a second, latency."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ...workers.trtllm_proto import pb
from ..results import cpu_seconds

NOISY = 0.1
"""Share of the machine's CPU beside ours from which figures are not to be believed."""
VOCABULARY = 2000
"""Token ids of prompts are below this: every model has them."""


class Timing(NamedTuple):
    """When a request's first message had come, and its last, in us."""

    first_us: float
    last_us: float


Ask = Callable[[], Awaitable[Timing]]
"""Sends one request, and reads its answer to the end."""


@dataclass
class Measured:
    """What the rounds showed of one way under one load. CPU is that of whole processes."""

    cpu_us: list[float] = field(default_factory=list)  # of a request, in each round
    engine_cpu_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    latency_us: list[float] = field(default_factory=list)  # of each request of all rounds
    ttft_us: list[float] = field(default_factory=list)  # to its first message

    def row(self, name: str, concurrency: int, output_tokens: int) -> dict[str, Any]:
        """In the shape that scripts read. Medians of rounds; percentiles of all requests."""
        row = {
            "name": name,
            "concurrency": concurrency,
            "output_tokens": output_tokens,
            "cpu_us_per_request": median(self.cpu_us),
            "cpu_us_rounds": self.cpu_us,
            "requests_per_s": median(self.requests_per_s),
            "latency_ms": _percentiles(self.latency_us),
            "ttft_ms": _percentiles(self.ttft_us),
        }
        if self.engine_cpu_us:
            row["engine_cpu_us_per_request"] = median(self.engine_cpu_us)
        return row


@dataclass(frozen=True)
class Way:
    """Where requests enter, whose CPU counts as that of the way, and whose as the engines'."""

    address: str
    pid: int
    engines: int | None = None

    async def measure(
        self, ask: Ask, requests: int, concurrency: int, into: Measured | None
    ) -> None:
        """Send so many requests, so many at a time; None: to warm up."""
        before, began = self._cpu_seconds(), time.perf_counter()
        timings = await _send(ask, requests, concurrency)
        took, after = time.perf_counter() - began, self._cpu_seconds()
        if into is None:
            return
        cpu, engine_cpu = ((b - a) * 1e6 / requests for a, b in zip(before, after, strict=True))
        into.cpu_us.append(cpu)
        if self.engines is not None:
            into.engine_cpu_us.append(engine_cpu)
        into.requests_per_s.append(requests / took)
        into.p50_us.append(median(timing.last_us for timing in timings))
        into.latency_us += (timing.last_us for timing in timings)
        into.ttft_us += (timing.first_us for timing in timings)

    def _cpu_seconds(self) -> tuple[float, float]:
        return cpu_seconds(self.pid), 0.0 if self.engines is None else cpu_seconds(self.engines)


async def _send(ask: Ask, requests: int, concurrency: int) -> list[Timing]:
    timings: list[Timing] = []

    async def client(count: int) -> None:
        for _ in range(count):
            timings.append(await ask())

    shares = [requests // concurrency + (n < requests % concurrency) for n in range(concurrency)]
    await asyncio.gather(*map(client, shares))
    return timings


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of the ratio within a round, where the machine's mood is the same."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def new_prompts(tokens: int, vocabulary: int = VOCABULARY) -> Iterator[list[int]]:
    """Token ids without end, no two prompts alike: made as they are asked for."""
    rng = np.random.default_rng(1)
    while True:
        yield rng.integers(3, vocabulary, tokens).tolist()


def generate_call(call: Any, prompts: Iterator[list[int]], output_tokens: int) -> Ask:
    """Sends GenerateRequests over `call`, a stream of bytes. AssertionError if an answer is not one
    message for each token and one for the end."""
    bodies, messages = generate_bodies(prompts, output_tokens), output_tokens + 1

    async def ask() -> Timing:
        body, began = next(bodies), time.perf_counter_ns()
        came, stream, first = 0, call(body), 0.0
        try:
            async for _ in stream:
                came += 1
                first = first or (time.perf_counter_ns() - began) / 1e3
        finally:
            stream.cancel()  # nothing, if it has ended
        assert came == messages, f"{came} messages, not {messages}"
        return Timing(first, (time.perf_counter_ns() - began) / 1e3)

    return ask


def generate_bodies(prompts: Iterator[list[int]], output_tokens: int) -> Iterator[bytes]:
    """Serialized GenerateRequests, one for each prompt, under ids of their own."""
    request = pb.GenerateRequest(max_tokens=output_tokens, streaming=True, ignore_eos=True)
    for count, token_ids in enumerate(prompts):
        request.request_id = f"request-{output_tokens}-{count}"
        del request.tokenized.input_token_ids[:]
        request.tokenized.input_token_ids.extend(token_ids)
        yield request.SerializeToString()


class Neighbours:
    """How much of the machine's CPU others use while something is measured."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._busy = _busy_seconds()

    def share(self, own_seconds: float) -> float:
        """Of all cores' time since then, what was used beside `own_seconds`."""
        took = time.perf_counter() - self._began
        others = _busy_seconds() - self._busy - own_seconds
        return max(0.0, others) / (took * (os.cpu_count() or 1))


def noise_content(others: float) -> dict[str, Any]:
    """What a result has of its neighbours, in the shape that scripts read."""
    return {"others_cpu_share": others, "too_noisy": others > NOISY}


def noise_words(result: Mapping[str, Any]) -> list[str]:
    """The same to be read; whether the result is to be believed."""
    said = [f"others used {result['others_cpu_share']:.0%} of the machine's CPU meanwhile"]
    if result["too_noisy"]:
        said.append(f"too noisy: above {NOISY:.0%} neighbours are measured, too; repeat it")
    return said


def _busy_seconds() -> float:
    """CPU time of the whole machine in use, or taken by other machines beside it, so far."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = times[3] + times[4]
    return (sum(times) - idle) / float(os.sysconf("SC_CLK_TCK"))


def children_of(parent: int) -> Mapping[int, str]:
    """Command lines of a process's children, by their ids."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_text()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found[int(folder.name)] = line
    return found


def _percentiles(times_us: list[float]) -> dict[str, float]:
    ordered = sorted(times_us)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100}
    return {name: ordered[place] / 1e3 for name, place in places.items()}
