"""The shipped sample trace: reproducible, readable, and worth routing by."""

from pathlib import Path

import numpy as np
import pytest

from dynamo_router.bench.sample import SAMPLE_TRACE, SampleShape, make_sample, write_sample
from dynamo_router.bench.trace import read_trace


def test_the_shipped_file_is_what_the_command_makes(tmp_path: Path) -> None:
    made = tmp_path / "sample.jsonl"
    count = write_sample(made)
    assert made.read_bytes() == SAMPLE_TRACE.read_bytes()
    assert len(list(read_trace(SAMPLE_TRACE))) == count


def test_it_is_small_and_has_something_to_reuse() -> None:
    assert SAMPLE_TRACE.stat().st_size < 200_000
    requests = list(read_trace(SAMPLE_TRACE))
    assert 200 <= len(requests) <= 1000
    unique = len({block for request in requests for block in request.hash_ids})
    total = sum(len(request.hash_ids) for request in requests)
    # An infinite cache would save most blocks, and some requests share nothing at all.
    assert 0.55 < 1 - unique / total < 0.85
    first_blocks = [request.hash_ids[0] for request in requests]
    alone = sum(first_blocks.count(block) == 1 for block in first_blocks)
    assert 20 <= alone <= len(requests) // 4


@pytest.mark.parametrize("seed", range(6))
def test_every_seed_makes_a_valid_trace(tmp_path: Path, seed: int) -> None:
    shape = SampleShape(seed=seed, sessions=40, cold=10)
    path = tmp_path / "trace.jsonl"
    write_sample(path, shape)
    requests = list(read_trace(path))
    assert requests == list(make_sample(shape))
    assert max(request.timestamp_ms for request in requests) <= shape.span_ms
    assert max(request.input_length for request in requests) <= shape.context_limit
    outputs = np.array([request.output_length for request in requests])
    assert outputs.min() >= 1 and outputs.max() <= shape.output_max


def test_a_turn_begins_with_the_turn_before_it() -> None:
    """Each longer prompt of a session holds all full blocks of the shorter one."""
    shape = SampleShape(tenants=1, sessions=1, turns_mean=1e6, cold=0)
    turns = list(make_sample(shape))
    assert len(turns) > 2
    for before, after in zip(turns, turns[1:], strict=False):
        full = before.input_length // 512
        assert after.hash_ids[:full] == before.hash_ids[:full]
        assert after.input_length > before.input_length + before.output_length
