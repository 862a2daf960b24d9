"""dynamo-router replay: sends a trace's requests to a live target and reports how they fared.

Without a target it is another name of simulate.py, which then gets the settings they share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, fields
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

from ..process.setting_checks import require_at_least, require_positive
from ..process.settings import bad_setting, option, options_of, values_of
from . import simulate
from .load import LoadStats, OnStart, TargetAccess, progress_bar
from .results import Goodput, ObjectiveConfig, Output, Run, runs_content, runs_table
from .simulation import Load, SimulationConfig, idle_engine_ms
from .traces import TraceRequest, block_size_of, read_trace, token_ids

DEFAULT_VOCAB_SIZE = 32_000
LIVE_ONLY = (
    *("concurrency", "streaming", "vocab_size", "timeout_s", "connect_timeout_s"),
    *("max_in_flight", "policy", "tls_ca", "tls_cert", "tls_key", "token_file"),
)
# Of the simulation's settings, those by which a live run is judged as well.
JUDGED_BY = (
    *(each.name for each in fields(ObjectiveConfig)),
    *("planner_profile_data", "max_num_batched_tokens", "attention_us_per_ktoken2"),
)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What to send where. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(metadata={"help": "The trace, a JSON lines file.", "positional": True})
    target: str | None = option(
        None,
        "Router or engine to send to, HOST:PORT. Not given: the same as `simulate`; the flags from"
        " --compare on are for that, but for the objectives of a good answer.",
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
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    seed: int = option(0, "Content of the prompts: another seed shares no prefix with this one.")
    timeout_s: float | None = option(600.0, "Give a request up after this long.", "--timeout")
    connect_timeout_s: float = option(
        10.0, "Wait this long for the target to answer at all.", "--connect-timeout"
    )
    max_in_flight: int = option(
        4096, "Most requests in flight; later arrivals are delayed, and counted in the report."
    )
    tls_ca: str | None = option(
        None, "Authorities (PEM) of a target with TLS; not given: the system's, at grpcs://."
    )
    tls_cert: str | None = option(None, "Certificate (PEM) to show to the target.")
    tls_key: str | None = option(None, "Its private key (PEM).")
    token_file: str | None = option(None, "File with the token of a caller with the role client.")
    mode: str | None = option(
        None,
        "How the target routes; not given: as it reports. Without a target: as `simulate`.",
    )
    policy: str | None = option(None, "The cost policy of the target; not given: as it reports.")
    workers: int | None = option(
        None, "Number of its workers; not given: as it reports. Without a target: as `simulate`."
    )
    progress: bool = option(
        True, "Show progress on stderr: a bar on a terminal, else a line every 5 s."
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')
    simulation: SimulationConfig = field(default_factory=SimulationConfig)  # without a target

    def __post_init__(self) -> None:
        require_at_least(self, 1, "concurrency", "max_in_flight", "workers")
        require_positive(self, "timeout_s", "connect_timeout_s")
        if self.vocab_size is not None and not 2 <= self.vocab_size <= 2**32:
            raise bad_setting("vocab_size", f"{self.vocab_size} must be from 2 to 2**32")
        Load.of(self)  # which checks the rest
        values = values_of(self)
        check_given(self, [s.key for s in options_of(ReplayConfig) if values[s.key] != s.default])
        _ = self.access  # which checks itself

    @property
    def access(self) -> TargetAccess:
        """What the target is shown."""
        return TargetAccess(
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token_file=self.token_file,
        )

    def goodput(
        self, requests: int, ttft_ms: list[float], itl_ms: list[float], prompt_tokens: list[int]
    ) -> Goodput:
        """How many of a live run's requests met the objectives; engines are as the settings say."""
        simulation = self.simulation
        cold_ms = idle_engine_ms(simulation.engine_config(), prompt_tokens)
        return simulation.objectives.goodput(
            requests, ttft_ms=ttft_ms, itl_ms=itl_ms, cold_ms=cold_ms
        )


def check_given(config: ReplayConfig, given: Iterable[str]) -> None:
    """ConfigError, naming the flag, if it means nothing in this kind of replay.

    `given` are dotted keys. With a target there are no simulated engines to set up; without one
    there is no router to connect to.
    """
    flags = {spec.key: spec.flags[0] for spec in options_of(ReplayConfig)}
    for key in given:
        if config.target is None and key in LIVE_ONLY:
            raise bad_setting(key, f"{flags[key]} needs a --target: a simulation has no use for it")
        section, _, name = key.rpartition(".")
        if config.target is not None and section == "simulation" and name not in JUDGED_BY:
            raise bad_setting(name, f"{flags[key]} is for simulations: --target is a live one")


class TimedRequest(NamedTuple):
    """A request ready to be sent, `due_s` after the first one."""

    due_s: float
    payload: bytes
    input_tokens: int
    expected: int  # tokens of the answer


async def replay(config: ReplayConfig, on_start: OnStart | None = None) -> Run:
    """Send the trace as `config` says; return when every request is answered or given up.

    `on_start` gets the number of requests and the statistics to watch. Cancelling cancels all that
    are under way. Raises ConfigError for a trace that cannot be used, before anything is sent, and
    for a target that does not answer.
    """
    from .load import LoadClient  # and gRPC's library with it

    if config.target is None:
        raise bad_setting("target", "is needed: the address of a router or an engine, HOST:PORT")
    # Read twice, so that a bad last line is found before the first request is sent, and a long
    # trace need not be held.
    total = sum(1 for _ in _requests(config))
    async with LoadClient(config.target, config.access) as client:
        info = await client.probe(config.connect_timeout_s)
        vocab_size = config.vocab_size or info.vocab_size or DEFAULT_VOCAB_SIZE
        requests = timed_requests(config, vocab_size)
        stats = LoadStats()
        if on_start is not None:
            on_start(total, stats)

        async def send(request: TimedRequest) -> None:
            outcome = await client.generate(request.payload, request.expected, config.timeout_s)
            outcome.input_tokens = request.input_tokens
            stats.add(outcome)

        started = perf_counter()
        if config.concurrency is None:
            await _send_on_time(requests, send, stats, config.max_in_flight)
        else:
            await _send_in_turn(requests, send, config.concurrency)
        return stats.run(
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
            judge=config.goodput,
        )


async def _send_on_time(
    requests: Iterator[TimedRequest],
    send: Callable[[TimedRequest], Coroutine[Any, Any, None]],
    stats: LoadStats,
    max_in_flight: int,
) -> None:
    """Open loop: each request at its time, whether or not earlier ones are answered."""
    slots = asyncio.Semaphore(max_in_flight)
    started = perf_counter()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(max(0.0, started + request.due_s - perf_counter()))
            if slots.locked():
                stats.held_back += 1
            await slots.acquire()
            stats.late_ms.append((perf_counter() - started - request.due_s) * 1e3)
            group.create_task(send(request)).add_done_callback(lambda _: slots.release())


async def _send_in_turn(
    requests: Iterator[TimedRequest],
    send: Callable[[TimedRequest], Awaitable[None]],
    concurrency: int,
) -> None:
    """Closed loop: the next request when one of the `concurrency` under way is answered."""

    async def send_next() -> None:
        for request in requests:
            await send(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(send_next())


def _requests(config: ReplayConfig) -> Iterator[TraceRequest]:
    return read_trace(config.trace, trace_block_size=config.trace_block_size, limit=config.requests)


def timed_requests(config: ReplayConfig, vocab_size: int) -> Iterator[TimedRequest]:
    """The requests of the trace, made one ahead of their time.

    A trace's answer of no tokens becomes one token, for an engine cannot be asked for less.
    """
    from .load import encode_generate

    block_size = block_size_of(config.trace, config.trace_block_size)
    run_id = token_hex(4)  # request ids must not repeat those of a run before
    first_ms: float | None = None
    for index, request in enumerate(_requests(config)):
        first_ms = request.timestamp_ms if first_ms is None else first_ms
        tokens = token_ids(request, vocab_size, seed=config.seed, trace_block_size=block_size)
        expected = max(1, min(request.output_length, config.max_output or request.output_length))
        yield TimedRequest(
            due_s=(request.timestamp_ms - first_ms) / 1e3 / config.arrival_speedup,
            payload=encode_generate(
                f"{run_id}-{index}",
                tokens,
                expected,
                streaming=config.streaming,
                tenant=request.tenant,
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
    """The command: 0, or 1 if no request succeeded."""
    if config.target is None:
        return simulate.run(_simulated(config))
    output = Output(config.json)

    async def measure() -> Run:
        async with progress_bar("replay", config.progress) as on_start:
            return await replay(config, on_start)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        result = runner.run(measure())
    output.print(f"{config.trace} -> {config.target}")
    output.print(runs_table([result]))
    if result.details["first_failure"]:
        output.print(f"first failure: {result.details['first_failure']}")
    output.write(runs_content([result]))
    return 0 if result.errors + result.rejected < result.requests else 1


def _simulated(config: ReplayConfig) -> simulate.SimulateConfig:
    """The same settings for `simulate`; those that were not given have its defaults."""
    shared = {each.name: getattr(config, each.name) for each in fields(simulate.SimulateConfig)}
    return simulate.SimulateConfig(**{k: v for k, v in shared.items() if v is not None})
