"""Generated traffic is a valid trace that has what its parameters say."""

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from dynamo_router.bench.evaluation.splits import FAMILIES, split_of
from dynamo_router.bench.traces.trace import lengths_fault, parent_fault
from dynamo_router.bench.traffic.generator import TRAFFIC_BLOCK_SIZE, generate_traffic
from dynamo_router.bench.traffic.spec import Bursts, TrafficSpec

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


def test_a_session_ends_where_its_prompt_would_be_too_long() -> None:
    made = generate(replace(PLAIN, turns=50.0, max_prompt_tokens=2000), 1000)
    assert max(request.input_length for request in made) <= 2000


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"turns": 0.5}, "turns must be at least 1"),
        ({"rate": 0.0}, "rate must be greater"),
        ({"forks": 0.5}, "die out"),
    ],
)
def test_parameters_that_make_no_traffic_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN, **changes)
    with pytest.raises(ValueError, match="more than all requests"):
        Bursts(factor=10, on_s=10, period_s=50)
