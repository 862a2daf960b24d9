"""The native engines in virtual time against plain Python: same steps, tokens and cache events."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.fleet import OracleEngine
from support.mock_requests import request

from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.engines.mocker.config import ENGINE_TYPES, PREEMPTION_MODES, EngineConfig
from dynamo_router.engines.mocker.sequence import Sequence
from dynamo_router.engines.mocker.tiers import EVICTIONS, TierConfig
from dynamo_router.engines.mocker.virtual import VirtualFleet
from dynamo_router.engines.serving.kv_events import BlocksStored, KvEvent
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed, StorageTier, Stored

LOWER_TIERS: tuple[StorageTier, ...] = ("host_pinned", "disk")
SMALL = EngineConfig(block_size=4, num_gpu_blocks=12, max_num_seqs=3, max_num_batched_tokens=10)


def submit(fleet: VirtualFleet, engine: int, number: int, sequence: Sequence, now: float) -> None:
    """Give the fleet the request that an oracle engine has taken in."""
    fleet.submit(
        engine,
        number,
        prompt_tokens=sequence.prompt_len,
        output_tokens=len(sequence.output),
        local_hashes=sequence.local_hashes,
        sequence_hashes=sequence.sequence_hashes,
        now=now,
    )


def told(message: bytes | None) -> dict[int, list[tuple[object, ...]]]:
    """Each engine's events as plain tuples; checks that they are numbered without a hole."""
    events: dict[int, list[tuple[object, ...]]] = {}
    for event in decode_event_message(message) if message else []:
        mine = events.setdefault(event.worker.worker_id, [])
        data, tier = event.data, event.storage_tier
        if isinstance(data, Stored):
            blocks = [(block.block_hash, block.tokens_hash) for block in data.blocks]
            mine.append((event.event_id, "stored", tier, data.parent_hash, blocks))
        elif isinstance(data, Removed):
            mine.append((event.event_id, "removed", tier, list(data.block_hashes)))
        else:
            assert isinstance(data, Cleared)
            mine.append((event.event_id, "cleared", tier))
    return events


def plain(event_id: int, event: KvEvent) -> tuple[object, ...]:
    if isinstance(event, BlocksStored):
        blocks = list(zip(event.block_hashes, event.local_hashes, strict=True))
        return (event_id, "stored", event.tier, event.parent_hash, blocks)
    return (event_id, "removed", event.tier, event.block_hashes)


def check_same(fleet: VirtualFleet, oracles: list[OracleEngine]) -> None:
    for number, oracle in enumerate(oracles):
        kv = oracle.engine.kv
        assert fleet.pools(number) == (kv.active_blocks, kv.inactive_blocks)
        holders = kv.holders
        assert fleet.cached_blocks(number) == [
            (block.block_hash, block.parent_hash, block.local_hash, holders[block.block_hash])
            for block in kv.cached_blocks()
        ]
        for tier in LOWER_TIERS:
            assert [row[0] for row in fleet.cached_blocks(number, tier=tier)] == [
                *kv.lower.blocks[tier]
            ]


requests = st.lists(
    st.tuples(
        st.integers(0, 12),  # tokens of a prefix that all share
        st.integers(1, 14),  # tokens of its own kind
        st.integers(0, 2),
        st.integers(1, 14),  # to generate
        st.integers(0, 1),  # engine
        st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),  # seconds after the one before
    ),
    min_size=1,
    max_size=25,
)
tier_configs = st.builds(
    TierConfig,
    host_blocks=st.sampled_from([0, 0, 2, 6, 40]),
    disk_blocks=st.sampled_from([0, 3, 40]),
    host_bandwidth_gbps=st.just(25.0),
    disk_bandwidth_gbps=st.sampled_from([0.001, 10.0]),
    hide_tiers=st.booleans(),
    eviction=st.sampled_from(EVICTIONS),
)
configs = st.builds(
    EngineConfig,
    block_size=st.just(4),
    num_gpu_blocks=st.sampled_from([10, 12, 30]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_num_batched_tokens=st.sampled_from([2, 10, 64]),
    enable_chunked_prefill=st.booleans(),
    watermark=st.sampled_from([None, 0.0, 0.2]),
    engine_type=st.sampled_from(ENGINE_TYPES),
    preemption_mode=st.sampled_from([None, *PREEMPTION_MODES]),
    startup_time_s=st.sampled_from([0.0, 0.0, 0.2]),
    decode_speedup_ratio=st.sampled_from([1.0, 1.5]),
    attention_us_per_ktoken2=st.sampled_from([0.0, 5e6]),
    tiers=tier_configs,
)


@given(config=configs, requests=requests, speed=st.sampled_from([1.0, 0.5, 3.0]))
@settings(max_examples=200, deadline=None)
def test_every_step_is_that_of_the_plain_engine(config, requests, speed):
    fleet = VirtualFleet(config, 2, speeds=(1.0, speed))
    oracles = [OracleEngine(config), OracleEngine(config, speed)]
    emitted: list[tuple[float, int, int, int, int]] = []
    events: dict[int, list[tuple[object, ...]]] = {0: [], 1: []}
    now = 0.0
    for number, (prefix, own, kind, max_tokens, engine, gap) in enumerate(requests):
        now += gap
        for oracle in oracles:
            oracle.advance(now)
        fleet.advance(now)
        emitted += zip(*(column.tolist() for column in fleet.take_emissions()), strict=True)
        for worker, new in told(fleet.collect(now)).items():
            events[worker] += new
        check_same(fleet, oracles)
        tokens = [*range(10, 10 + prefix), *range(100 * kind + 100, 100 * kind + 100 + own)]
        new_request = request(str(number), tokens, max_tokens)
        if len(tokens) + max_tokens > config.max_seq_len:
            continue
        submit(fleet, engine, number, oracles[engine].submit(new_request, now), now)
    for oracle in oracles:
        oracle.advance(math.inf)
    fleet.advance(math.inf)
    assert not fleet.is_busy
    emitted += zip(*(column.tolist() for column in fleet.take_emissions()), strict=True)
    for worker, new in told(fleet.collect(math.inf)).items():
        events[worker] += new
    check_same(fleet, oracles)
    assert sorted(emitted) == sorted(oracles[0].emitted + oracles[1].emitted)
    assert [row[0] for row in emitted] == sorted(row[0] for row in emitted)
    seconds, counts = fleet.gaps()
    assert sorted(np.repeat(seconds, counts).tolist()) == sorted(oracles[0].gaps + oracles[1].gaps)
    for number, oracle in enumerate(oracles):
        flat = [event for _, step in oracle.events for event in step]
        assert events[number] == [plain(i, event) for i, event in enumerate(flat, start=1)]
        assert fleet.stats()[number].steps == oracle.steps


def filled(loss: float = 0.0, seed: int = 0) -> tuple[VirtualFleet, OracleEngine]:
    """A fleet of one engine that has run some requests, and its like; nothing collected."""
    fleet, oracle = VirtualFleet(SMALL, 1, event_loss=loss, seed=seed), OracleEngine(SMALL)
    for number in range(12):
        tokens = range(50 * (number % 5), 50 * (number % 5) + 9 + number)
        submit(fleet, 0, number, oracle.submit(request(str(number), tokens, 5), 0.0), 0.0)
    fleet.advance(math.inf)
    oracle.advance(math.inf)
    return fleet, oracle


def test_an_announcement_is_the_whole_cache_in_the_order_it_came():
    fleet, oracle = filled()
    before = told(fleet.collect(math.inf))[0]
    fleet.announce(0, 1e6)
    assert fleet.collect(1e6 - 1) is None
    after = told(fleet.collect(1e6))[0]
    assert [event[0] for event in after] == list(
        range(len(before) + 1, len(before) + 1 + len(after))
    )
    assert after[0][1] == "cleared"
    known: set[object] = {None}
    blocks = []
    for _, kind, tier, parent, chain in after[1:]:
        assert (kind, tier) == ("stored", "device") and parent in known
        known |= {name for name, _ in chain}
        blocks += chain
    assert blocks == [(b.block_hash, b.local_hash) for b in oracle.engine.kv.cached_blocks()]


def test_what_a_step_says_is_lost_together_and_leaves_a_gap():
    whole = told(filled()[0].collect(math.inf))[0]
    fleet, oracle = filled(loss=0.4, seed=3)
    events = told(fleet.collect(math.inf))[0]
    ids = {event[0] for event in events}
    lost = set(range(1, len(whole) + 1)) - ids
    assert lost and ids and fleet.lost_messages
    assert events == [event for event in whole if event[0] in ids]
    first = 1
    steps = 0
    for _, step in oracle.events:
        of_step = set(range(first, first + len(step)))
        first += len(step)
        assert of_step <= lost or of_step <= ids, "a message was torn"
        steps += of_step <= lost
    assert steps == fleet.lost_messages
    assert told(filled(loss=0.4, seed=3)[0].collect(math.inf))[0] == events
    assert told(filled(loss=0.4, seed=4)[0].collect(math.inf))[0] != events
    assert filled(loss=1.0)[0].collect(math.inf) is None


def test_events_are_out_only_when_their_step_has_begun():
    fleet, oracle = filled()
    times = [time for time, _ in oracle.events]
    seen = 0
    for time, step in oracle.events:
        seen += len(step)
        assert [e[0] for e in told(fleet.collect(time))[0]] == list(
            range(seen - len(step) + 1, seen + 1)
        )
    assert len(times) > 3
    quiet = VirtualFleet(SMALL, 1, record_events=False)
    submit(quiet, 0, 0, OracleEngine(SMALL).submit(request("0", range(9), 3), 0.0), 0.0)
    quiet.advance(math.inf)
    quiet.announce(0, 1e6)
    assert quiet.collect(math.inf) is None


def test_a_request_at_the_end_of_a_step_is_in_the_next_one():
    fleet, oracle = VirtualFleet(SMALL, 1), OracleEngine(SMALL)
    for engine in (fleet, oracle):
        if isinstance(engine, OracleEngine):
            first = engine.submit(request("0", range(10), 2), 0.0)
    submit(fleet, 0, 0, first, 0.0)
    oracle.advance(0.0001)
    end = oracle._clock
    fleet.advance(end)
    assert fleet.take_emissions().times.tolist() == [end]
    assert fleet.stats()[0].steps == 1, "the next step waits for what arrives now"
    submit(fleet, 0, 1, OracleEngine(SMALL).submit(request("1", range(50, 54), 1), end), end)
    fleet.advance(math.inf)
    assert fleet.stats()[0].steps == 2


def test_what_can_never_run_is_refused_and_so_is_what_the_queue_cannot_hold():
    fleet = VirtualFleet(EngineConfig(block_size=4, num_gpu_blocks=4, max_waiting=2), 1)
    hashes = np.arange(9, dtype=np.uint64)

    def send(prompt: int, output: int) -> None:
        fleet.submit(
            0,
            0,
            prompt_tokens=prompt,
            output_tokens=output,
            local_hashes=hashes,
            sequence_hashes=hashes,
            now=0.0,
        )

    for prompt, output in ((0, 1), (16, 1), (10, 7), (3, 0)):
        with pytest.raises(InvalidRequestError):
            send(prompt, output)
    with pytest.raises(InvalidRequestError, match=r"the limit is 15 \(num_gpu_blocks\)"):
        send(16, 1)
    send(4, 1)
    send(4, 1)
    with pytest.raises(NoWorkersError):
        send(4, 1)
    with pytest.raises(IndexError):
        fleet.cached_blocks(1)
    with pytest.raises(ValueError):
        fleet._fleet.submit(0, 0, 40, 1, hashes, hashes, 0.0, -1.0, 0)
    with pytest.raises(ValueError):
        fleet._fleet.submit(0, 0, 4, 1, hashes, hashes[1:], 0.0, -1.0, 0)
    with pytest.raises(ValueError):
        VirtualFleet(SMALL, 0)


def test_time_can_pass_to_the_first_answer_only():
    whole, steps = VirtualFleet(SMALL, 2), VirtualFleet(SMALL, 2)
    for fleet in (whole, steps):
        for number in range(6):
            tokens = range(100 * number, 100 * number + 9 + number)
            sequence = OracleEngine(SMALL).submit(request(str(number), tokens, 4), 0.0)
            submit(fleet, number % 2, number, sequence, 0.0)
    whole.advance(math.inf)
    expected = whole.take_emissions()
    seen: list[tuple[float, int]] = []
    while steps.is_busy:
        now = steps.advance(math.inf, to_answer=True)
        emissions = steps.take_emissions()
        assert set(emissions.times.tolist()) == {now}
        seen += zip(emissions.times.tolist(), emissions.kinds.tolist(), strict=True)
    assert seen == list(zip(expected.times.tolist(), expected.kinds.tolist(), strict=True))


def test_speeds_are_repeated_over_the_engines():
    fleet = VirtualFleet(SMALL, 3, speeds=(1.0, 0.5))
    for engine in range(3):
        submit(fleet, engine, engine, OracleEngine(SMALL).submit(request("0", range(9), 3), 0), 0)
    fleet.advance(math.inf)
    first, slow, third = (row.busy_s for row in fleet.stats())
    assert first == third and slow == pytest.approx(2 * first)
