"""dynamo-router bench transfer: how long the blocks of a prompt take from engine to engine.

Both engines are in this process, as those of one `mocker` are. `copy` is the same bytes copied once
within the process: what the machine's memory can do. A write ends when its target is notified.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ...base.errors import ConfigError
from ...engines.transfer import (
    Grant,
    Notification,
    Offer,
    Transfer,
    TransferConfig,
)
from ...process.setting_checks import require_at_least
from ...process.settings import option
from ..results import Benchmark, Column, measure_in_turns, new_table

WAYS = ("shm", "nixl")
_HASH = 7
_DEADLINE_S = 30.0
_SHARED = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class TransferBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    blocks: int = option(64, "Blocks of a prompt.")
    block_bytes: int = option(16384, "Bytes of a block.")
    transfers: int = option(50, "Transfers in a round, one after the other.")
    rounds: int = option(9, "Rounds, after one to warm up; medians of them are reported.")
    core: int | None = option(None, "Pin this process to a CPU core (steadier).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "blocks", "transfers", "rounds")
        _ = TransferConfig(transfer_block_bytes=self.block_bytes).layout


class Ends:
    """Two engines' ends of one way, with a prompt in the first one."""

    def __init__(
        self, config: TransferBenchConfig, way: str, folder: str, runner: asyncio.Runner
    ) -> None:
        self._config, self._runner = config, runner
        settings = TransferConfig(
            transfer=way, transfer_block_bytes=config.block_bytes, transfer_folder=folder
        )
        self._first, self._second = runner.run(_opened(settings, config.blocks))
        self._hashes = [_HASH * number for number in range(config.blocks)]
        self._ours = self._first.grants.allocate(config.blocks)
        self._first.arena.fill(self._ours, self._hashes)
        self._theirs = self._second.grants.allocate(config.blocks)
        self._notified = asyncio.Event()
        self._second.listen(self._notice)
        self._attempts = 0

    def round(self, direction: str) -> dict[str, float]:
        """Milliseconds of a transfer, and gigabytes a second in the usual one."""
        seconds = self._runner.run(self._expected(self._round(direction)))
        wrong = self._second.arena.wrong(self._theirs, self._hashes)
        assert not wrong, f"{len(wrong)} blocks have wrong contents"
        return figures(seconds, self._config)

    def close(self) -> None:
        for each in (self._first, self._second):
            self._runner.run(each.close())

    async def _expected(self, work: Awaitable[list[float]]) -> list[float]:
        """Peers are expected meanwhile, and not while another way is measured: NIXL polls then."""
        ends = (self._first, self._second)
        for each in ends:
            each.expect(1)
        try:
            return await work
        finally:
            for each in ends:
                each.expect(-1)

    async def _round(self, direction: str) -> list[float]:
        move = self._write if direction == "write" else self._read
        self._second.arena.words[:] = 0
        seconds = []
        for _ in range(self._config.transfers):
            began = time.perf_counter()
            await move()
            seconds.append(time.perf_counter() - began)
        return seconds

    async def _write(self) -> None:
        second = self._second
        grant = self._granted()
        self._notified.clear()
        peer = self._first.connect(second.export())
        ticket = self._first.write(peer, self._ours, grant, "r", deadline_s=_DEADLINE_S)
        await self._first.finished(ticket)
        await self._notified.wait()
        second.grants.fail(grant.attempt)

    async def _read(self) -> None:
        first, second = self._first, self._second
        blocks = tuple(self._ours)
        offer = Offer(first.engine_id, "x", blocks, first.grants.epochs_of(blocks))
        peer = second.connect(first.export())
        positions = range(len(blocks))
        ticket = second.read(peer, offer, self._theirs, positions, deadline_s=_DEADLINE_S)
        await second.finished(ticket)

    def _granted(self) -> Grant:
        self._attempts += 1
        return self._second.grants.grant(self._theirs, str(self._attempts), deadline=0.0)

    def _notice(self, engine_id: str, notification: Notification) -> None:
        if notification.attempt == str(self._attempts):
            self._notified.set()


async def _opened(settings: TransferConfig, blocks: int) -> tuple[Transfer[Any], Transfer[Any]]:
    first = settings.open(blocks)
    try:
        return first, settings.open(blocks)
    except BaseException:
        await first.close()
        raise


def figures(seconds: list[float], config: TransferBenchConfig) -> dict[str, float]:
    middle, late = np.percentile(seconds, [50, 99]).tolist()
    size = config.blocks * config.block_bytes
    return {"p50_ms": middle * 1e3, "p99_ms": late * 1e3, "gb_s": size / middle / 1e9}


def copied(config: TransferBenchConfig) -> Callable[[], dict[str, float]]:
    source = np.ones(config.blocks * config.block_bytes, np.uint8)
    target = np.zeros_like(source)

    def round() -> dict[str, float]:
        seconds = []
        for _ in range(config.transfers):
            began = time.perf_counter()
            np.copyto(target, source)
            seconds.append(time.perf_counter() - began)
        return figures(seconds, config)

    return round


def measure(config: TransferBenchConfig) -> dict[str, Any]:
    """Each way in both directions; `left_out` says why one could not be had."""
    parent = str(_SHARED) if _SHARED.is_dir() else None
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
        variants = {"copy": copied(config)}
        left_out = {}
        for way in WAYS:
            try:
                ends = Ends(config, way, folder, runner)
            except ConfigError as error:
                left_out[way] = str(error)
                continue
            stack.callback(ends.close)
            for direction in ("write", "read"):
                variants[f"{way} {direction}"] = partial(ends.round, direction)
        rounds = measure_in_turns(variants, config.rounds, warm_up=1)
        return {"ways": dict(shares(rounds.spreads())), "left_out": left_out}


def shares(spreads: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """With the share of what memory can do."""
    limit = spreads["copy"]["gb_s"]["median"]
    for way, spread in spreads.items():
        yield way, {**spread, "share": spread["gb_s"]["median"] / limit}


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = f"{config['blocks']} blocks of {config['block_bytes']} bytes"
    table = new_table(title, "p50 ms", "p99 ms", "GB/s", "share of a copy")
    columns = (Column("", "p50_ms", 3), Column("", "p99_ms", 3), Column("", "gb_s", 2))
    for way, spread in result["ways"].items():
        cells = [each.show(spread[each.key]["median"]) for each in columns]
        table.add_row(way, *cells, f"{spread['share']:.0%}")
    for way, why in result["left_out"].items():
        table.add_row(f"{way}: {why}", "", "", "", "")
    return [table]


run = Benchmark("transfer", measure, tables)
