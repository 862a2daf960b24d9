"""How a look-up and a store change as the tree and the fleet grow. The prompts are invented."""

import gc
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ...results import Measurement, percentiles
from .config import IndexBenchConfig
from .memory import give_back_memory, resident_bytes
from .rivals import IndexAdapter, available_adapters
from .workload import Hashes, Prompt, Stored

STEPS = (100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 50_000_000)
FLEETS = (8, 64, 512, 4096)
PROMPT = 128  # blocks: 8192 tokens in blocks of 64
SHARED = 16  # of them are the system prompt of a tenant
TENANT = 64  # prompts that share it
FLEET_OF_STEPS = 64  # workers, while blocks grow
PROBES = 2048  # prompts that are looked up
# A rival's tree is grown this far only: its events are JSON, made by Python.
RIVAL_BLOCKS = 1_000_000
# Bytes a block may need while an array is moved to a larger place, both counted.
HEADROOM = 100
BATCH = 1 << 16  # blocks invented at a time


def measure_growth(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """`kind` "blocks": one tree per index and round, measured as it passes each size.

    `kind` "workers": prompts of one tree looked up when 8 ... 4096 workers hold it: a tenant's
    prompts are on 8 workers ("few"), or its system prompt on all besides ("all"), which makes every
    answer as long as the fleet.
    """
    measured = Measurement[tuple[Any, ...]]()
    most = min(config.max_blocks, available_bytes() // 2 // HEADROOM)
    steps = [step for step in STEPS if step <= most] or [most]
    fleets = [fleet for fleet in FLEETS if fleet <= config.max_workers]
    for round in range(min(3, config.rounds)):
        for name in config.indexes:
            if name not in ("arrays", "dynamo"):
                continue
            limit = most if name == "arrays" else min(most, RIVAL_BLOCKS)
            sizes = [step for step in steps if step <= limit]
            for size, figures in _grow(_make(name), sizes, config.seed + round):
                measured.add(("blocks", name, size), figures)
            for fleet in fleets:
                for held in ("few", "all"):
                    figures = _spread_out(_make(name), fleet, held == "all", config.seed + round)
                    measured.add(("workers", name, fleet, held), figures)
    return [
        {"kind": kind, "contender": name, kind: size}
        | ({"held_by": held[0]} if held else {})
        | figures
        for (kind, name, size, *held), figures in measured.spreads().items()
    ]


def available_bytes() -> int:
    """Memory that the system can still give out; without a known limit, 4 GiB."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30


def invent_prompts(rng: np.random.Generator, blocks: int) -> Iterator[Prompt]:
    """Prompts that come to about `blocks` different blocks: tenants of TENANT prompts each."""
    made = 0
    while made < blocks:
        system = _invent(rng, SHARED)
        bodies = _invent(rng, TENANT * (PROMPT - SHARED))
        made += SHARED
        for at in range(0, len(bodies.local_hashes), PROMPT - SHARED):
            body = slice(at, at + PROMPT - SHARED)
            yield Prompt(
                np.concatenate([system.local_hashes, bodies.local_hashes[body]]),
                np.concatenate([system.sequence_hashes, bodies.sequence_hashes[body]]),
            )
            made += PROMPT - SHARED
            if made >= blocks:
                return


def _invent(rng: np.random.Generator, count: int) -> Prompt:
    both = rng.integers(0, 2**64, 2 * count, np.uint64)
    return Prompt(both[:count], both[count:])


def _make(name: str) -> IndexAdapter:
    return available_adapters()[name]()


def _grow(
    index: IndexAdapter, sizes: Sequence[int], seed: int
) -> Iterator[tuple[int, dict[str, float]]]:
    rng = np.random.default_rng(seed)
    probes: list[Hashes] = []
    stored = 0
    give_back_memory()
    gc.disable()
    try:
        before = resident_bytes()
        invented = invent_prompts(rng, sizes[-1] + BATCH)
        prompts = sizes[-1] // PROMPT
        every = max(1, prompts // PROBES)
        count = 0
        for size in sizes:
            seconds, segment = 0.0, 0
            while stored < size:
                batch: list[Any] = []
                for prompt in invented:
                    worker = count % FLEET_OF_STEPS
                    batch.append(
                        index.ready_store(
                            Stored(worker, None, prompt.sequence_hashes, prompt.local_hashes)
                        )
                    )
                    # As many of the old ones as of the young ones, and few before the tree is big.
                    if count % every == 0 or count < PROBES // 4:
                        probes.append(index.ready_match(prompt))
                    count += 1
                    segment += PROMPT
                    stored += PROMPT
                    if len(batch) * PROMPT >= BATCH or stored >= size:
                        break
                started = perf_counter()
                for each in batch:
                    index.store(each)
                seconds += perf_counter() - started
            del batch
            used = resident_bytes() - before
            p50, p99 = _look_up(index, probes)
            yield (
                size,
                {
                    "store_blocks_per_s": segment / seconds,
                    "match_p50_us": p50,
                    "match_p99_us": p99,
                    "bytes_per_block": used / stored,
                },
            )
    finally:
        gc.enable()


def _look_up(index: IndexAdapter, probes: Sequence[Any]) -> list[float]:
    """p50 and p99 in us of look-ups in an order that no cache foresees."""
    order = np.random.default_rng(1).permutation(len(probes))[:PROBES].tolist()
    each_us = []
    for at in order:
        probe = probes[at]
        started = perf_counter()
        index.match(probe)
        each_us.append((perf_counter() - started) * 1e6)
    return percentiles(each_us, 50, 99)


def _spread_out(index: IndexAdapter, fleet: int, everywhere: bool, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    prompts = list(invent_prompts(rng, 1 << 18))
    probes = []
    for at, prompt in enumerate(prompts):
        if everywhere and at % TENANT == 0 and at < 8 * TENANT:
            for worker in range(fleet):
                _store(index, worker, prompt, SHARED)
        # A tenant's prompts are on 8 workers, each of them on 4.
        first = at // TENANT * 8 + at % 2 * 4
        for worker in range(first, first + 4):
            _store(index, worker % fleet, prompt, PROMPT)
        if not everywhere or at < 8 * TENANT:
            probes.append(index.ready_match(prompt))
    for probe in probes[:64]:
        index.match(probe)
    p50, p99 = _look_up(index, probes)
    answer = index.scores(index.match(probes[0]))
    return {"match_p50_us": p50, "match_p99_us": p99, "workers_found": len(answer)}


def _store(index: IndexAdapter, worker: int, prompt: Prompt, blocks: int) -> None:
    op = Stored(worker, None, prompt.sequence_hashes[:blocks], prompt.local_hashes[:blocks])
    index.store(index.ready_store(op))
