"""dynamo-router replay: sends a trace's requests to a live target and reports how they fared.

Without a target the engines are simulated, and the router runs in here: see compare.py.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

from ..runtime.settings import bad_setting, option
from .load import LoadClient, OnStart, Tally, encode_generate, progress_bar
from .results import Run, check_json_target, document, runs_table, table_console, write_json
from .simulation import DEFAULT_WORKERS, Load, SimulationConfig, compare
from .traces import TraceRequest, read_trace, token_ids

DEFAULT_VOCAB_SIZE = 32_000


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What to send where. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(metadata={"help": "The trace, a JSON lines file.", "positional": True})
    target: str | None = option(
        None, "Router or engine to send to, HOST:PORT. Not given: simulate engines and routers."
    )
    requests: int | None = option(None, "Send only the trace's first N requests.")
    arrival_speedup: float = option(1.0, "Send at the trace's times divided by this.")
    concurrency: int | None = option(
        None, "Ignore the trace's times: keep this many requests running."
    )
    max_output: int | None = option(None, "Ask for at most this many tokens a request.")
    streaming: bool = option(True, "Ask for tokens as they come; off: TTFT is end to end.")
    vocab_size: int | None = option(
        None, f"Prompts' token ids stay below; not given: the target's, or {DEFAULT_VOCAB_SIZE}."
    )
    trace_block_size: int = option(512, "Tokens that one hash id of the trace stands for.")
    seed: int = option(0, "Content of the prompts: another seed shares no prefix with this one.")
    timeout_s: float | None = option(600.0, "Give a request up after this long.", "--timeout")
    connect_timeout_s: float = option(
        10.0, "Wait this long for the target to answer at all.", "--connect-timeout"
    )
    max_in_flight: int = option(
        4096, "Hold arrivals back while so many requests run; counted in the report."
    )
    mode: str | None = option(None, "How the target routes; not given: what it says of itself.")
    policy: str | None = option(None, "Its cost policy; not given: what it says of itself.")
    workers: int | None = option(
        None,
        "How many workers it has; not given: what it says. "
        f"Simulated: how many engines there are; not given: {DEFAULT_WORKERS}.",
    )
    progress: bool = option(True, "Show a progress bar, if stderr is a terminal.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')
    simulation: SimulationConfig = field(default_factory=SimulationConfig)

    def __post_init__(self) -> None:
        for key in ("requests", "concurrency", "max_output", "max_in_flight", "workers"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise bad_setting(key, f"{value} must be at least 1")
        for key in ("arrival_speedup", "timeout_s", "connect_timeout_s"):
            value = getattr(self, key)
            if value is not None and not 0 < value < float("inf"):
                raise bad_setting(key, f"{value} must be finite and greater than 0")
        if self.vocab_size is not None and not 2 <= self.vocab_size <= 2**32:
            raise bad_setting("vocab_size", f"{self.vocab_size} must be from 2 to 2**32")
        if not 1 <= self.trace_block_size <= 2**20:
            raise bad_setting(
                "trace_block_size", f"{self.trace_block_size} must be from 1 to 2**20"
            )
        if self.target is not None and self.simulation != SimulationConfig():
            raise bad_setting("target", "a live target cannot be given settings of a simulation")
        if self.target is None and self.concurrency is not None:
            raise bad_setting("concurrency", "needs a target: a simulation keeps the trace's times")


class Shot(NamedTuple):
    """A request ready to be sent, `due_s` after the first one."""

    due_s: float
    payload: bytes
    input_tokens: int
    expected: int  # tokens of the answer


async def replay(config: ReplayConfig, on_start: OnStart | None = None) -> Run:
    """Send the trace as `config` says; return when every request is answered or given up.

    `on_start` gets the number of requests and the tally to watch. Cancelling cancels all requests
    that are under way. Raises ConfigError for a trace that cannot be used, before anything is sent,
    and for a target that does not answer.
    """
    if config.target is None:
        raise bad_setting("target", "is needed: the address of a router or an engine, HOST:PORT")
    # Read twice, so that a bad last line is found before the first request is sent, and a long
    # trace need not be held.
    total = sum(1 for _ in _requests(config))
    async with LoadClient(config.target) as client:
        info = await client.probe(config.connect_timeout_s)
        shots = make_shots(config, config.vocab_size or info.vocab_size or DEFAULT_VOCAB_SIZE)
        tally = Tally()
        if on_start is not None:
            on_start(total, tally)

        async def send(shot: Shot) -> None:
            outcome = await client.generate(shot.payload, shot.expected, config.timeout_s)
            outcome.input_tokens = shot.input_tokens
            tally.add(outcome)

        started = perf_counter()
        if config.concurrency is None:
            await _send_on_time(shots, send, tally, config.max_in_flight)
        else:
            await _send_in_turn(shots, send, config.concurrency)
        return tally.run(
            perf_counter() - started,
            mode=config.mode or info.mode or "unknown",
            policy=config.policy or info.policy or "unknown",
            workers=config.workers or info.workers,
            seed=config.seed,
            details={
                "trace": config.trace,
                "target": config.target,
                "arrival_speedup": None if config.concurrency else config.arrival_speedup,
                "concurrency": config.concurrency,
            },
        )


async def _send_on_time(
    shots: Iterator[Shot],
    send: Callable[[Shot], Coroutine[Any, Any, None]],
    tally: Tally,
    max_in_flight: int,
) -> None:
    """Open loop: each request at its time, whether or not earlier ones are answered."""
    room = asyncio.Semaphore(max_in_flight)
    started = perf_counter()
    async with asyncio.TaskGroup() as group:
        for shot in shots:
            await asyncio.sleep(max(0.0, started + shot.due_s - perf_counter()))
            if room.locked():
                tally.held_back += 1
            await room.acquire()
            tally.late_ms.append((perf_counter() - started - shot.due_s) * 1e3)
            group.create_task(send(shot)).add_done_callback(lambda _: room.release())


async def _send_in_turn(
    shots: Iterator[Shot], send: Callable[[Shot], Awaitable[None]], concurrency: int
) -> None:
    """Closed loop: the next request when one of `concurrency` lanes is free."""

    async def lane() -> None:
        for shot in shots:
            await send(shot)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(lane())


def _requests(config: ReplayConfig) -> Iterator[TraceRequest]:
    return read_trace(config.trace, trace_block_size=config.trace_block_size, limit=config.requests)


def make_shots(config: ReplayConfig, vocab_size: int) -> Iterator[Shot]:
    """The requests of the trace, made one ahead of their time.

    A trace's answer of no tokens becomes one token, for an engine cannot be asked for less.
    """
    run_id = token_hex(4)  # request ids must not repeat those of a run before
    first_ms: float | None = None
    for number, request in enumerate(_requests(config)):
        first_ms = request.timestamp_ms if first_ms is None else first_ms
        tokens = token_ids(
            request, vocab_size, seed=config.seed, trace_block_size=config.trace_block_size
        )
        expected = max(1, min(request.output_length, config.max_output or request.output_length))
        yield Shot(
            due_s=(request.timestamp_ms - first_ms) / 1e3 / config.arrival_speedup,
            payload=encode_generate(
                f"{run_id}-{number}", tokens, expected, streaming=config.streaming
            ),
            input_tokens=len(tokens),
            expected=expected,
        )


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where it exists: the client must not be what a measurement measures."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(config: ReplayConfig) -> int:
    """The command: 0, or 1 if no request succeeded, or 130 on Ctrl-C."""
    if config.target is None:
        return _simulate(config)
    check_json_target(config.json)

    async def measure() -> Run:
        async with progress_bar("replay", config.progress) as on_start:
            return await replay(config, on_start)

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            result = runner.run(measure())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    console = table_console(config.json)
    console.print(f"{config.trace} -> {config.target}")
    console.print(runs_table([result]))
    if result.details["first_failure"]:
        console.print(f"first failure: {result.details['first_failure']}")
    if config.json is not None:
        write_json(config.json, document([result]))
    return 0 if result.errors + result.rejected < result.requests else 1


def _simulate(config: ReplayConfig) -> int:
    load = Load(
        trace=config.trace,
        requests=config.requests,
        arrival_speedup=config.arrival_speedup,
        max_output=config.max_output,
        trace_block_size=config.trace_block_size,
        seed=config.seed,
    )
    return compare.run(
        config.simulation, load, workers=config.workers, mode=config.mode, json=config.json
    )
