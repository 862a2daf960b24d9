"""Generated traffic is a valid trace that has what its parameters say."""

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from dynamo_router.bench.evaluation.splits import FAMILIES, split_of
from dynamo_router.bench.traces.trace import lengths_fault, parent_fault
from dynamo_router.bench.traffic.generator import TRAFFIC_BLOCK_SIZE, generate_traffic
from dynamo_router.bench.traffic.spec import Bursts, Chunks, Jobs, TrafficSpec

PLAIN = TrafficSpec(
    family="plain",
    rate=5.0,
    prefixes=3,
    popularity=1.0,
    prefix_tokens=640,
    prefix_spread=0.2,
    turns=3.0,
    user_tokens=200,
    user_spread=0.5,
    output_tokens=100,
    output_spread=0.5,
    pause_s=2.0,
    pause_spread=0.5,
)


def generate(spec: TrafficSpec, requests: int = 3000, seed: int = 1, first_id: int = 0):
    return generate_traffic(spec, requests, rate=spec.rate, seed=seed, first_id=first_id)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_a_valid_trace_from_its_first_id_on(family: str) -> None:
    split = split_of("train")
    made = generate(split.traffic[family], 600, first_id=split.first_id)
    parents: dict[int, int] = {}
    times = [request.timestamp_ms for request in made]
    assert times == sorted(times) and times[0] == 0 and len(made) == 600
    for request in made:
        assert lengths_fault(request, TRAFFIC_BLOCK_SIZE) is None
        assert parent_fault(request, parents) is None
        assert request.output_length >= 1 and min(request.hash_ids) >= split.first_id


def test_rate_and_lengths_are_those_asked_for() -> None:
    made = generate(PLAIN, 6000)
    assert len(made) / (made[-1].timestamp_ms / 1e3) == pytest.approx(PLAIN.rate, rel=0.1)
    assert mean(request.output_length for request in made) == pytest.approx(100, rel=0.05)
    single = generate(replace(PLAIN, turns=1.0, prefixes=1, prefix_spread=0.0), 4000)
    assert mean(request.input_length for request in single) == pytest.approx(840, rel=0.03)


def test_the_same_seed_is_the_same_traffic_and_another_is_other_traffic() -> None:
    assert generate(PLAIN, 200) == generate(PLAIN, 200)
    assert generate(PLAIN, 100) == generate(PLAIN, 200)[:100]
    assert generate(PLAIN, 200) != generate(PLAIN, 200, seed=2)


def shared_tokens(requests: list) -> float:
    """Tokens of blocks that some request before had, as a share."""
    seen: set[int] = set()
    hits = total = 0
    for request in requests:
        hits += sum(block in seen for block in request.hash_ids)
        total += len(request.hash_ids)
        seen.update(request.hash_ids)
    return hits / total


def test_turns_repeat_their_history_or_only_what_all_begin_with() -> None:
    with_history = generate(replace(PLAIN, turns=6.0), 1500)
    without = generate(replace(PLAIN, turns=6.0, history=False), 1500)
    assert mean(r.input_length for r in with_history) > 2 * mean(r.input_length for r in without)
    assert len({r.hash_ids[:2] for r in without}) == PLAIN.prefixes
    assert (
        shared_tokens(generate(replace(PLAIN, turns=1.0, prefixes=500, popularity=0.0), 300)) < 0.4
    )
    assert shared_tokens(without) > 0.6


def test_side_sessions_carry_on_from_the_same_prompt() -> None:
    def most_children(spec: TrafficSpec) -> int:
        """The most prompts of different sessions that carry on from one session's block."""
        after: dict[int, set[int]] = {}
        for request in generate(spec, 2000):
            for at, block in enumerate(request.hash_ids[14:-1], 14):
                after.setdefault(block, set()).add(request.hash_ids[at + 1])
        return max(map(len, after.values()))

    # One more than whole blocks explain: the partial block at the end of a prompt.
    assert most_children(PLAIN) < most_children(replace(PLAIN, forks=0.2))


def test_jobs_come_at_once_and_bursts_come_and_go() -> None:
    jobs = generate(replace(PLAIN, turns=1.0, job_requests=20.0))
    _, sizes = np.unique([request.timestamp_ms for request in jobs], return_counts=True)
    assert np.average(sizes) == pytest.approx(20, rel=0.25)
    bursts = Bursts(factor=4, on_s=10, period_s=50)
    made = generate(replace(PLAIN, turns=1.0, bursts=bursts), 6000)
    counts = np.bincount([int(r.timestamp_ms // 5000) for r in made])
    assert max(counts) > 2.5 * np.median(counts)
    assert len(made) / (made[-1].timestamp_ms / 1e3) == pytest.approx(PLAIN.rate, rel=0.15)


def test_passages_come_in_any_order_behind_a_shared_beginning() -> None:
    chunks = Chunks(pool=3, popularity=0.0, taken=2, tokens=256)
    spec = replace(PLAIN, turns=1.0, prefixes=1, prefix_spread=0.0, chunks=chunks)
    made = generate(spec, 500)
    parents: dict[int, int] = {}
    assert all(parent_fault(request, parents) is None for request in made)
    assert len({request.hash_ids[:10] for request in made}) == 1
    assert len({request.hash_ids[:14] for request in made}) == 3  # the first passage
    assert len({request.hash_ids[:18] for request in made}) == 6  # behind each, one of two others


def test_jobs_beside_sessions_have_their_share_and_lengths() -> None:
    jobs = Jobs(share=0.4, requests=25.0, user_tokens=4000, output_tokens=10)
    made = generate(replace(PLAIN, prefix_tokens=64, user_tokens=100, jobs=jobs), 6000)
    times = [request.timestamp_ms for request in made]
    together = {time for time in times if times.count(time) > 5}
    batch = [request for request in made if request.timestamp_ms in together]
    assert len(batch) / len(made) == pytest.approx(0.4, abs=0.08)
    assert mean(request.input_length for request in batch) > 3500
    assert mean(request.output_length for request in batch) < 15
    assert len(made) / (made[-1].timestamp_ms / 1e3) == pytest.approx(PLAIN.rate, rel=0.15)


def test_popularity_drifts_from_one_beginning_to_the_next() -> None:
    def favourites(spec: TrafficSpec) -> set[int]:
        """First blocks of the beginnings that most requests of some 50 s have."""
        firsts: dict[int, list[int]] = {}
        for request in generate(spec, 2000):
            firsts.setdefault(int(request.timestamp_ms // 50e3), []).append(request.hash_ids[0])
        parts = [firsts[part] for part in range(7)]
        return {max(set(part), key=part.count) for part in parts}

    still = replace(PLAIN, turns=1.0, prefixes=8, popularity=3.0, prefix_spread=0.0)
    assert len(favourites(still)) == 1
    assert len(favourites(replace(still, drift_s=50.0))) >= 6


def test_a_session_ends_where_its_prompt_would_be_too_long() -> None:
    made = generate(replace(PLAIN, turns=50.0, max_prompt_tokens=2000), 1000)
    assert max(request.input_length for request in made) <= 2000


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"turns": 0.5}, "turns must be at least 1"),
        ({"rate": 0.0}, "rate must be greater"),
        ({"forks": 0.5}, "die out"),
        ({"drift_s": -1.0}, "drift_s must be at least 0"),
    ],
)
def test_parameters_that_make_no_traffic_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN, **changes)
    with pytest.raises(ValueError, match="more than all requests"):
        Bursts(factor=10, on_s=10, period_s=50)
    with pytest.raises(ValueError, match="at least one of the pool"):
        Chunks(pool=2, popularity=1.0, taken=3, tokens=64)
    with pytest.raises(ValueError, match="a share between 0 and 1"):
        Jobs(share=1.0, requests=2.0, user_tokens=1, output_tokens=1)
    with pytest.raises(ValueError, match="prompts and answers"):
        Jobs(share=0.5, requests=2.0, user_tokens=0, output_tokens=1)
