"""Ways to the same engines, measured in turn: CPU of processes, requests a second, latency."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from ...base.errors import RouterError
from ..results import Column, cpu_seconds, rows_table, turns
from .neighbours import Neighbours, children_of, noise_content, noise_words

VOCABULARY = 2000
"""Token ids of prompts are below this: every model has them."""


PROMPTS = (("prompt", "prompt_tokens"), ("new", "new_tokens"), ("tools", "tools"))
"""Columns of conversations' loads."""
STRAIGHT = "direct"
"""The way that adds nothing: what others add to its latency is compared, too."""


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

    def row(self, name: str, load: "Load") -> dict[str, Any]:
        """In the shape that scripts read. Medians of rounds; percentiles of all requests."""
        row: dict[str, Any] = {
            "name": name,
            **load.fields(),
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
        """Send `requests`, `concurrency` at a time; None: to warm up."""
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


class Load(NamedTuple):
    """Requests at a time, and tokens of an answer; of conversations also the tokens of a prompt,
    and how many of them are new; of an agent's how many tools it has."""

    concurrency: int
    output_tokens: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    tools: int = 0

    def fields(self) -> dict[str, int]:
        """Those that say something, by name."""
        always = ("concurrency", "output_tokens")
        return {name: n for name, n in self._asdict().items() if n or name in always}


class Ways:
    """Named ways, and how a request is sent on each of them."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._asks: dict[str, Mapping[Load, Ask]] = {}

    def add(self, name: str, way: Way, asks: Mapping[Load, Ask]) -> None:
        """`asks`: how a request of a load is sent."""
        self._ways[name] = way
        self._asks[name] = asks

    def pin(self) -> None:
        """Give what is measured the first core that we may use, and all others the second one.
        RouterError if there is only one."""
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            raise RouterError("there is only one core: nothing can be pinned apart from others")
        ways = self._ways.values()
        engines = {way.engines for way in ways if way.engines is not None}
        measured = {way.pid for way in ways} - engines
        helpers = {child for pid in measured for child in children_of(pid)} - measured
        for pid in measured:
            _pin(pid, first)
        for pid in engines | helpers | {os.getpid()}:
            _pin(pid, others[0])

    async def measure(
        self,
        loads: Sequence[Load],
        requests: int,
        rounds: int,
        bases: Iterable[tuple[str, str]],
    ) -> dict[str, Any]:
        """Send `requests` on each way under each load that it has, round by round, the first round
        to warm up.

        A row for each; for each way and the one of `bases` beside it the medians of the ratios
        within a round; and what others used of the machine meanwhile.
        """
        cells = {
            (name, load): Measured()
            for load in loads
            for name in self._ways
            if load in self._asks[name]
        }
        own, neighbours = 0.0, Neighbours()
        for number, (order, counts) in enumerate(turns(self._ways, rounds, warm_up=1)):
            if number == 1:
                own, neighbours = self._cpu_seconds(), Neighbours()
            for load, name in product(loads, order):
                if (name, load) not in cells:
                    continue
                ask, into = self._asks[name][load], cells[name, load]
                await self._ways[name].measure(
                    ask, requests, load.concurrency, into if counts else None
                )
        others = neighbours.share(self._cpu_seconds() - own)
        ratios = [
            {"name": name, "beside": base, **load.fields()}
            | _ratios(cells[name, load], cells[base, load], cells.get((STRAIGHT, load)))
            for load in loads
            for name, base in bases
            if (name, load) in cells and (base, load) in cells
        ]
        rows = [measured.row(name, load) for (name, load), measured in cells.items()]
        return {"rows": rows, "ratios": ratios, **noise_content(others)}

    def _cpu_seconds(self) -> float:
        """Of all processes that take part, ours too."""
        pids = {pid for way in self._ways.values() for pid in (way.pid, way.engines) if pid}
        pids |= {child for pid in pids for child in children_of(pid)}
        return time.process_time() + sum(map(cpu_seconds, pids))


def _pin(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that ended
            os.sched_setaffinity(int(task.name), {core})


def ways_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """What Ways.measure returned, and whether it is to be believed."""
    rows = result["rows"]
    columns = (
        Column("tokens", "output_tokens", 0),
        Column("at a time", "concurrency", 0),
        *(Column(word, key, 0) for word, key in PROMPTS if any(key in row for row in rows)),
        Column("way", "name"),
        Column("CPU", "cpu_us_per_request", 0),
        Column("engines", "engine_cpu_us_per_request", 0),
        Column("requests/s", "requests_per_s", 0),
        Column("TTFT p50", "ttft_ms.p50", 2),
        Column("TTFT p99", "ttft_ms.p99", 2),
        Column("latency p50", "latency_ms.p50", 2),
        Column("latency p99", "latency_ms.p99", 2),
    )
    title = "CPU in us per request, of the measured process and of the engines; times in ms"
    words = [
        f"{each['name']} / {each['beside']}, {_load_words(each)}:"
        f" CPU {each['cpu']:.2f}, requests/s {each['requests_per_s']:.2f}"
        for each in result["ratios"]
    ]
    return [rows_table(rows, columns, title), *words, *noise_words(result)]


def _load_words(row: Mapping[str, Any]) -> str:
    words = f"{row['output_tokens']} tokens, {row['concurrency']} at a time"
    if "prompt_tokens" in row:
        words = f"prompts of {row['prompt_tokens']}, {row['new_tokens']} new, {words}"
    if "tools" in row:
        words = f"{row['tools']} tools, {words}"
    return words


async def _send(ask: Ask, requests: int, concurrency: int) -> list[Timing]:
    timings: list[Timing] = []

    async def client(count: int) -> None:
        for _ in range(count):
            timings.append(await ask())

    shares = [requests // concurrency + (n < requests % concurrency) for n in range(concurrency)]
    await asyncio.gather(*map(client, shares))
    return timings


def _ratios(ours: Measured, theirs: Measured, straight: Measured | None) -> dict[str, float]:
    ratios = {
        "cpu": ratio(ours.cpu_us, theirs.cpu_us),
        "requests_per_s": ratio(ours.requests_per_s, theirs.requests_per_s),
    }
    if straight is not None:
        added = (
            [p50 - least for p50, least in zip(each.p50_us, straight.p50_us, strict=True)]
            for each in (ours, theirs)
        )
        ratios["added_p50"] = ratio(*added)
    return ratios


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of the ratio within a round, where the machine's mood is the same."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def new_prompts(tokens: int) -> Iterator[list[int]]:
    """Token ids without end, no two prompts alike: made as they are asked for."""
    rng = np.random.default_rng(1)
    while True:
        yield rng.integers(3, VOCABULARY, tokens).tolist()


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
    from ...workers.trtllm_proto import pb  # not for a command that only prints its help

    request = pb.GenerateRequest(max_tokens=output_tokens, streaming=True, ignore_eos=True)
    for count, token_ids in enumerate(prompts):
        request.request_id = f"request-{output_tokens}-{count}"
        del request.tokenized.input_token_ids[:]
        request.tokenized.input_token_ids.extend(token_ids)
        yield request.SerializeToString()


def _percentiles(times_us: list[float]) -> dict[str, float]:
    ordered = sorted(times_us)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100}
    return {name: ordered[place] / 1e3 for name, place in places.items()}
