"""dynamo-router demo --disagg: prompts computed apart, beside engines that do both.

Two prefill and two decode mock engines share prompts through the prefill queue, over NATS with
JetStream; etcd and NIXL are used where they are.
"""

import asyncio
import importlib.util
import json
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import NamedTuple

from ..runtime.event_planes import EmbeddedNats
from .load import (
    ServeProcess,
    mock_fleet_arguments,
    progress_bar,
    start_child,
    worker_arguments,
)
from .replay import ReplayConfig, replay
from .results import Output, Run, runs_content, runs_table
from .station_picture import draw_stations, stations_content, write_picture
from .stations import RECORDED, ROLES, ROUTER, NotPassedError, Passed, read_calls, way_of

SHORT, LONG = (320, 64), (7000, 8)
"""Tokens of a prompt and of its answer."""
LONG_SHARE = 0.3
REQUESTS, SECONDS = 40, 6.0
_TRACE_BLOCK = 512
_STOP_S = 10.0
_LOOK_S = 0.05
_TITLE = "One prompt through the prefill queue"
_ENGINE = re.compile(r"engine \d+: grpc://(\S+)")
_METRICS = re.compile(r"metrics: (http://\S+)")
_COUNTED = {
    "transferred_bytes": "dynamo_router_transfer_bytes_total",
    "blocks_checked": "dynamo_router_kv_blocks_checked_total",
    "kv_corrupt": "dynamo_router_kv_corrupt_total",
    "redelivered": "dynamo_router_prefill_queue_redelivered_total",
    "dead_letters": "dynamo_router_prefill_queue_dead_letters_total",
    "queued": "dynamo_router_prefill_queue_prefills_total",
}


class DisaggDemo(NamedTuple):
    """What to show of it."""

    seed: int = 0
    start_timeout_s: float = 60.0
    progress: bool = True
    picture: str | None = None
    """where one prompt's stations are drawn"""


async def run_disagg(config: DisaggDemo, output: Output) -> bool:
    """Both ways, one after the other; whether all requests were answered and all blocks right.
    Leaves no process behind."""
    store = "file" if _program("etcd") is None else "etcd"
    transfer = "nixl" if importlib.util.find_spec("nixl") is not None else "shm"
    output.print(f"store: {store}, transfer of blocks: {transfer}; {_why_not(store, transfer)}")
    with tempfile.TemporaryDirectory(prefix="dynamo-router-demo-") as made:
        folder = Path(made)
        trace = folder / "trace.jsonl"
        trace.write_text(long_and_short(config.seed))
        aggregated = await _aggregated(config, trace)
        apart, counts, way = await _apart(config, trace, folder, store, transfer)
    runs = [aggregated, apart]
    output.print(runs_table(runs))
    output.print(
        f"{counts['queued']} prompts went through the queue, {counts['transferred_bytes']:,} bytes"
        f" of blocks moved; {counts['blocks_checked']} blocks were checked,"
        f" {counts['kv_corrupt']} had wrong contents. Redelivered: {counts['redelivered']}, dead"
        f" letters: {counts['dead_letters']}."
    )
    content = {"store": store, "transfer": transfer, **counts, **runs_content(runs)}
    if config.picture is not None:
        write_picture(config.picture, draw_stations(way, _TITLE, _described(way, store, transfer)))
        output.print(f"The stations of one prompt: {config.picture}")
        content["stations"] = stations_content(way)
    output.write(content)
    return not counts["kv_corrupt"] and not any(run.errors + run.rejected for run in runs)


def long_and_short(seed: int) -> str:
    """The trace: short prompts with longer answers, long ones among them."""
    rng, hashes, lines = Random(seed), 0, []
    for number in range(REQUESTS):
        prompt, answer = LONG if rng.random() < LONG_SHARE else SHORT
        blocks = -(-prompt // _TRACE_BLOCK)
        at_ms = int(number * SECONDS * 1e3 / REQUESTS)
        lines.append(trace_line(at_ms, (prompt, answer), range(hashes, hashes + blocks)))
        hashes += blocks
    return "".join(lines)


def trace_line(at_ms: int, tokens: tuple[int, int], hash_ids: Iterable[int]) -> str:
    """One request. `tokens`: of its prompt and of its answer."""
    prompt, answer = tokens
    record = {"timestamp": at_ms, "input_length": prompt, "output_length": answer}
    return json.dumps(record | {"hash_ids": list(hash_ids)}) + "\n"


async def _aggregated(config: DisaggDemo, trace: Path) -> Run:
    arguments = mock_fleet_arguments("kv", workers=4, block_size=64, num_gpu_blocks=1024)
    limit_s = config.start_timeout_s
    async with ServeProcess(arguments, workers=4, start_timeout_s=limit_s) as serving:
        return await _replayed(config, trace, serving, "aggregated")


async def _apart(
    config: DisaggDemo, trace: Path, folder: Path, store: str, transfer: str
) -> tuple[Run, dict[str, int], list[Passed]]:
    way: list[Passed] = []
    calls = {role: folder / f"{role}.calls" for role in ROLES}

    def program(role: str) -> tuple[str, ...]:
        if config.picture is None:
            return ("-m", "dynamo_router")
        return ("-m", RECORDED, str(calls[role]))

    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(store=folder / "nats"))
        env = {"DYN_FILE_KV": str(folder / "store")}
        if store == "etcd":
            env = {"ETCD_ENDPOINTS": await _etcd(folder / "etcd", stack)}
        blocks = folder / "blocks"
        blocks.mkdir(mode=0o700)

        async def mocker(role: str) -> _Mocker:
            made = _Mocker()
            command = [
                *(sys.executable, "-P", *program(role), "mocker"),
                *("--discovery", store, "--nats", nats.url, "--transfer", transfer),
                *("--transfer-folder", str(blocks), "--disaggregation-mode", role),
                *("--prefill-queue", "--max-model-len", "0", "--num-gpu-blocks", "1024"),
                *("--workers", "2", "--port", "0", "--metrics-port", "0"),
            ]
            name, limit_s = "dynamo-router mocker", config.start_timeout_s
            await start_child(name, command, stack, made.on_line, timeout_s=limit_s, env=env)
            return made

        prefill, decode = await asyncio.gather(mocker("prefill"), mocker("decode"))
        arguments = [
            *worker_arguments(decode.addresses),
            *(f"--prefill-worker=grpc://{each}" for each in prefill.addresses),
            *("--nats", nats.url, "--block-size", "64"),
            *("--disagg-handoff", "queue", "--disagg", "always"),
            *("--max-local-prefill-length", "1000", "--max-prefill-queue-size", str(REQUESTS)),
        ]
        limit_s = config.start_timeout_s
        serving = await stack.enter_async_context(
            ServeProcess(arguments, workers=2, start_timeout_s=limit_s, program=program(ROUTER))
        )
        run = await _replayed(config, trace, serving, "prefill apart")
        if config.picture is not None:
            since_s = monotonic()
            trace.write_text(trace_line(0, LONG, range(-(-LONG[0] // _TRACE_BLOCK))))
            await _replayed(config._replace(seed=config.seed + 1), trace, serving, "one prompt")
            way = await _recorded(calls, since_s, transfer)
        pages = [await each.metrics() for each in (prefill, decode)]
    counts = {
        key: int(sum(_sample_sum(page, name) for page in pages)) for key, name in _COUNTED.items()
    }
    return run, counts, way


async def _recorded(calls: dict[str, Path], since_s: float, transfer: str) -> list[Passed]:
    """The way of the one prompt since then. NotPassedError if it was not all of it."""
    ends_at = monotonic() + _STOP_S
    while True:
        try:
            found = {role: read_calls(path) for role, path in calls.items()}
            return way_of(found, since_s, transfer)
        except NotPassedError:  # its answer was here before all was written down
            if monotonic() >= ends_at:
                raise
        await asyncio.sleep(_LOOK_S)


def _described(way: list[Passed], store: str, transfer: str) -> str:
    pids = ", ".join(f"{role} {pid}" for role, pid in {p.place.role: p.pid for p in way}.items())
    kept = "etcd" if store == "etcd" else "files"
    return f"{LONG[0]} tokens; blocks by {transfer}, metadata in {kept}; processes: {pids}"


async def _replayed(config: DisaggDemo, trace: Path, serving: ServeProcess, name: str) -> Run:
    print(f"{name}: {len(trace.read_text().splitlines())} requests", file=sys.stderr)
    asked = ReplayConfig(
        trace=str(trace), target=serving.grpc_address, seed=config.seed, mode=name, workers=4
    )
    async with AsyncExitStack() as stack:
        on_start = await stack.enter_async_context(progress_bar(name, config.progress))
        return await replay(asked, on_start)


class _Mocker:
    """A `dynamo-router mocker` as a child."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._page = ""

    def on_line(self, line: str) -> bool:
        """Whether it is ready."""
        if found := _ENGINE.search(line):
            self.addresses.append(found[1])
        if found := _METRICS.search(line):
            self._page = found[1]
        return line == "ready"

    async def metrics(self) -> str:
        import aiohttp  # by what runs alone: a command that prints its help needs no client

        async with aiohttp.ClientSession(trust_env=False) as http, http.get(self._page) as answer:
            return await answer.text()


async def _etcd(folder: Path, stack: AsyncExitStack) -> str:
    """Its address; it runs until the stack ends."""
    program = _program("etcd")
    assert program is not None
    found: list[str] = []

    def on_line(line: str) -> bool:
        if address := re.search(r'serving client traffic insecurely.*?"address":"([^"]+)"', line):
            found.append(f"http://{address[1]}")
        return bool(found)

    any_port = "http://127.0.0.1:0"
    command = [
        program, "--data-dir", str(folder), "--listen-client-urls", any_port,
        "--advertise-client-urls", any_port, "--listen-peer-urls", any_port,
    ]  # fmt: skip
    await start_child("etcd", command, stack, on_line, timeout_s=_STOP_S)
    return found[0]


def _program(name: str) -> str | None:
    """The absolute path of a program of ours or on PATH; None if there is none."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return None if found is None else str(Path(found).resolve())


def _why_not(store: str, transfer: str) -> str:
    etcd = "etcd runs" if store == "etcd" else "there is no etcd program"
    nixl = "NIXL is installed" if transfer == "nixl" else "NIXL is not installed"
    return f"{etcd}, {nixl}"


def _sample_sum(page: str, name: str) -> float:
    """Of all series of a counter."""
    samples = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(name))
    return sum(float(value) for series, value in samples if series.partition("{")[0] == name)
