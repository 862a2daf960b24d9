"""Host memory and disk below a mock engine's device: what moves, what it costs, what is told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from oracles.engine import OracleMockEngine
from support.mock_requests import request

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.mocker.sequence import Sequence
from dynamo_router.engines.mocker.tiers import TierConfig
from dynamo_router.engines.mocker.virtual import VirtualFleet
from dynamo_router.engines.serving.kv_events import BlocksRemoved, BlocksStored
from dynamo_router.workers.retention import Retention


def config(blocks: int = 4, **tiers: object) -> EngineConfig:
    return EngineConfig(block_size=4, num_gpu_blocks=blocks, tiers=TierConfig(**tiers))  # type: ignore[arg-type]


def serve(engine: MockEngine, *tokens: int) -> tuple[Sequence, list[object], float]:
    """Run one prompt: it, what the cache said, how long its first step took."""
    sequence = engine.submit(request("a", tokens, 1))
    first = engine.step()
    assert not engine.has_work
    return sequence, list(first.events), first.duration_s


def kinds(events: list[object]) -> list[tuple[str, str, int]]:
    found = []
    for event in events:
        if isinstance(event, BlocksStored):
            found.append(("stored", event.tier, len(event.blocks)))
        else:
            assert isinstance(event, BlocksRemoved)
            found.append(("removed", event.tier, len(event.block_hashes)))
    return found


def test_what_the_device_evicts_goes_down_and_comes_back_at_the_price_of_its_transfer() -> None:
    # A block is 4 tokens of 2.5e8 bytes: a second from host memory, ten from disk.
    links = {"kv_bytes_per_token": 250_000_000, "disk_bandwidth_gbps": 0.1}
    engine = MockEngine(config(3, host_blocks=2, host_bandwidth_gbps=1.0, disk_blocks=9, **links))
    _, events, alone = serve(engine, *range(11))
    assert kinds(events) == [("stored", "device", 2)]
    _, events, _ = serve(engine, *range(50, 61))
    assert kinds(events) == [
        ("stored", "host_pinned", 1),
        ("removed", "device", 1),
        ("stored", "device", 2),
        ("stored", "host_pinned", 1),  # for the block that is not full
        ("removed", "device", 1),
    ]
    _, events, _ = serve(engine, *range(90, 101))
    down = [("stored", "disk", 1), ("removed", "host_pinned", 1)]
    down += [("stored", "host_pinned", 1), ("removed", "device", 1)]
    assert kinds(events) == [*down, ("stored", "device", 2), *down]
    again, events, took = serve(engine, *range(11))
    assert again.cached_tokens == 8 and ("removed", "disk", 2) in kinds(events)
    assert took == pytest.approx(alone + 20.0, abs=0.1)
    again, events, took = serve(engine, *range(90, 101))
    assert again.cached_tokens == 8 and ("removed", "host_pinned", 2) in kinds(events)
    assert took == pytest.approx(alone + 2.0, abs=0.1)


def test_hidden_tiers_are_used_and_not_told_of() -> None:
    engine = MockEngine(config(3, host_blocks=9, hide_tiers=True))
    serve(engine, *range(11))
    _, events, _ = serve(engine, *range(50, 61))
    assert {(what, tier) for what, tier, _ in kinds(events)} == {
        ("removed", "device"),
        ("stored", "device"),
    }
    assert serve(engine, *range(11))[0].cached_tokens == 8
    assert not [*engine.cached_blocks("host_pinned")]


def test_under_lineage_the_beginnings_of_all_prompts_outlive_their_ends() -> None:
    def left(eviction: str) -> set[int]:
        engine = MockEngine(config(9, eviction=eviction))
        for first in (0, 100):
            serve(engine, *range(first, first + 17))
        serve(engine, *range(200, 217))
        return firsts(engine)

    assert left("lru") == {100, 104, 108, 112, 200, 204, 208, 212}
    assert left("lineage") == {0, 4, 100, 104, 200, 204, 208, 212}


def test_under_multi_lru_what_is_used_often_outlives_what_was_used_last() -> None:
    def left(eviction: str, uses: int) -> set[int]:
        engine = MockEngine(config(5, eviction=eviction))
        for _ in range(uses):
            serve(engine, *range(9))  # two full blocks
        for first in (100, 200):
            serve(engine, *range(first, first + 9))
        return firsts(engine) & {0, 4}

    assert left("lru", 6) == left("multi-lru", 2) == set()
    assert left("multi-lru", 3) == left("multi-lru", 6) == {0, 4}


def test_what_was_used_often_long_ago_makes_room_in_the_end() -> None:
    engine = MockEngine(config(5, eviction="multi-lru"))
    for _ in range(9):
        serve(engine, *range(9))
    for first in range(100, 100 + 60 * 10, 10):
        serve(engine, *range(first, first + 9))
    for _ in range(4):  # by now others are as often used
        serve(engine, *range(900, 909))
    serve(engine, *range(920, 937))
    assert not firsts(engine) & {0, 4}


def test_what_never_returns_leaves_first_and_what_is_promised_last() -> None:
    engine = MockEngine(config(8))
    hints = {0: 17, 100: None, 200: 4}
    for first, returning in hints.items():
        tokens = [*range(first, first + 9)]
        engine.submit(request("a", tokens, 1, returning_tokens=returning))
        engine.step()
    serve(engine, *range(240, 249))  # two blocks, and one that is not full
    assert firsts(engine) == {0, 4, 100, 104, 200, 240, 244}, "204 does not return"
    serve(engine, *range(140, 149))
    assert firsts(engine) == {0, 4, 200, 240, 244, 140, 144}, "promised ones outlive younger ones"


def firsts(engine: MockEngine) -> set[int]:
    """The first token of each block on the device."""
    return {block.token_ids[0] + 256 * block.token_ids[1] for block in engine.cached_blocks()}


def test_the_index_claims_what_each_tier_holds() -> None:
    engine = replace(
        config(12, host_blocks=6, disk_blocks=8), max_num_batched_tokens=16, max_num_seqs=3
    )
    fleet = VirtualFleet(engine, 1)
    rng = np.random.default_rng(5)
    worker, used = WorkerWithDpRank(0, 0), set[str]()
    with KvRouter(KvRouterConfig(block_size=4)) as router:
        router.add_worker(0)
        for number in range(120):
            prefix, kind = int(rng.integers(0, 5)) * 4, int(rng.integers(0, 4))
            tokens = [*range(prefix), *range(100 * kind + 100, 100 * kind + 106 + prefix)]
            sequence = OracleMockEngine(engine).submit(request(str(number), tokens, 3))
            fleet.submit(
                0,
                number,
                prompt_tokens=sequence.prompt_len,
                output_tokens=3,
                local_hashes=sequence.local_hashes,
                sequence_hashes=sequence.sequence_hashes,
                now=float(number),
            )
            if number == 60:
                fleet.announce(0, float(number))
            fleet.advance(number + 0.9)
            if (message := fleet.collect(math.inf)) is not None:
                router.apply_event(message)
            held = {
                row[0]: tier
                for tier in ("device", "host_pinned", "disk")
                for row in fleet.cached_blocks(0, tier=tier)  # type: ignore[arg-type]
            }
            found = router.tier_overlaps(tokens).get(worker, (0, 0, 0, 0))
            expected = {"device": 0, "host_pinned": 0, "disk": 0}
            for block in sequence.sequence_hashes[: len(tokens) // 4].tolist():
                if block not in held:
                    break
                expected[held[block]] += 1
            assert tuple(found)[:3] == tuple(expected.values()), number
            used.update(held.values())
        assert used == expected.keys(), "a tier was never used"
        assert fleet.stats()[0].loading_s > 0, "none was ever read"


def test_settings_out_of_range_are_refused_by_name() -> None:
    for key in ("host_blocks", "disk_blocks"):
        with pytest.raises(ConfigError, match=key):
            TierConfig(**{key: -1})
    for key in ("host_bandwidth_gbps", "disk_bandwidth_gbps", "kv_bytes_per_token"):
        with pytest.raises(ConfigError, match=key):
            TierConfig(**{key: 0})
    with pytest.raises(ConfigError, match="eviction"):
        TierConfig(eviction="fifo")


def test_what_is_loaded_while_a_step_runs_is_there_when_the_next_one_begins() -> None:
    def first_token(prefetched: bool) -> float:
        # 8 blocks of 4 tokens; a block takes 0.01 s from host memory.
        link = {"kv_bytes_per_token": 250_000, "host_bandwidth_gbps": 0.1}
        fleet = VirtualFleet(config(12, host_blocks=40, **link), 1)
        rng = np.random.default_rng(3)
        chains = [rng.integers(0, 2**63, (2, 8)).astype(np.uint64) for _ in range(3)]
        for number, chain in enumerate([*chains, chains[0]]):
            if number == 3:
                assert fleet.cached_blocks(0, tier="host_pinned")
                busy = rng.integers(0, 2**63, (2, 2)).astype(np.uint64)
                hashes = {"local_hashes": busy[0], "sequence_hashes": busy[1]}
                fleet.submit(0, 9, prompt_tokens=9, output_tokens=1, now=100.0, **hashes)
                fleet.advance(100.001)
                if prefetched:
                    assert fleet.prefetch(0, chain[0], chain[1], 100.001) == 8
                    assert fleet.prefetch(0, chain[0], chain[1], 100.001) == 0
            hashes = {"local_hashes": chain[0], "sequence_hashes": chain[1]}
            now = 100.001 if number == 3 else 10.0 * number
            fleet.submit(0, number, prompt_tokens=33, output_tokens=1, now=now, **hashes)
            if number < 3:
                fleet.advance(now + 10)
        fleet.advance(math.inf)
        found = fleet.take_emissions()
        return float(found.times[found.requests == 3][0])

    assert first_token(True) < first_token(False) - 0.005


@pytest.mark.parametrize("seed", range(6))
def test_classes_of_use_are_those_of_the_plain_engine_over_many_uses(seed: int) -> None:
    """Through all four classes and several halvings, with retention that ends, and lower tiers."""
    rng = np.random.default_rng(seed)
    settings = config(14, eviction="multi-lru", host_blocks=6 * (seed % 2))
    engine, oracle, now = MockEngine(settings), OracleMockEngine(settings), 0.0
    beginnings = [[n, n, n, n] * int(rng.integers(1, 3)) for n in range(4)]
    prompts = [
        [*beginnings[n % 4], *([10 + n] * 4 * int(rng.integers(0, 3))), 1] for n in range(12)
    ]
    shares = 1 / np.arange(1, 13) ** 1.2
    heats: set[int] = set()
    for _ in range(400):
        prompt = prompts[rng.choice(12, p=shares / shares.sum())]
        retention = [None, Retention.whole(int(rng.integers(0, 101)), float(rng.exponential(60.0)))]
        asked = request("a", prompt, 1, retention=retention[int(rng.integers(0, 4) == 0)])
        for each in (engine, oracle):
            each.submit(asked)
        idle = float(rng.exponential(20.0))
        step, plain = engine.step(idle), oracle.step(now + idle)
        now += idle + step.duration_s
        assert step.events == plain.events
        oracle.kv.check_integrity()
        heats |= {kept.level % 4 for kept in oracle.kv._inactive.values()}
    assert heats == {0, 1, 2, 3}
