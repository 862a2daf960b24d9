"""New tokens of a turn that takes over more, or less, than the learned turn it is like."""

import numpy as np
import pytest

from dynamo_router.bench.evaluation.splits import split_of
from dynamo_router.bench.synthesizer.sample import synthesize
from dynamo_router.bench.synthesizer.trace_model import learn_model
from dynamo_router.bench.synthesizer.turn_pool import LEAST_FITTED, Record, new_by_taken
from dynamo_router.bench.traces.columns import columns_of
from dynamo_router.bench.traffic import TRAFFIC_BLOCK_SIZE, generate_traffic

SIZE = 64


def record(takes: int, tokens: int) -> Record:
    return Record(1, takes, tokens, 10, ())


def test_prompts_of_one_length_have_as_much_less_new_as_they_take_over() -> None:
    records = [record(takes, 4000 - SIZE * takes) for takes in range(40)]
    assert new_by_taken(records, SIZE) == pytest.approx(-SIZE)
    shorter = [record(takes, 4000 - 2 * SIZE * takes) for takes in range(31)]
    assert new_by_taken(shorter, SIZE) == -SIZE, "no turn gets shorter by taking over more"


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(5, 100)] * 50,
        [record(takes, 300) for takes in range(50)],
        [record(takes, 100 + takes) for takes in range(50)],
        [record(takes % 7, 200 - takes % 7 + 90 * (takes % 3)) for takes in range(50)],
        [record(takes, 4000 - SIZE * takes) for takes in range(LEAST_FITTED - 1)],
    ],
)
def test_what_does_not_depend_on_it_stays_as_it_was_learned(records: list[Record]) -> None:
    assert new_by_taken(records, SIZE) == 0.0


@pytest.mark.parametrize("seed", range(2))
def test_prompts_of_chunks_in_any_order_vary_as_little_as_learned(seed: int) -> None:
    spec = split_of("train").traffic["rag-chunks"]
    learned = columns_of(
        generate_traffic(spec, 1000, rate=2.0, seed=7), trace_block_size=TRAFFIC_BLOCK_SIZE
    )
    made = synthesize(learn_model(learned), 1000, seed=seed, kind="sessions")
    lengths = np.array([each.input_length for each in made])
    own = np.asarray(learned.input_lengths)
    assert lengths.mean() == pytest.approx(own.mean(), rel=0.01)
    assert lengths.std() == pytest.approx(own.std(), rel=0.1)
