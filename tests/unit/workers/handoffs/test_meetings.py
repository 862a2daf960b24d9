"""Ids under which two engines meet: none twice, and of the rank that is meant."""

import random

import numpy as np
import pytest

from dynamo_router.workers.handoffs import Meetings


@pytest.mark.parametrize("bits", [62, 31])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_a_million_numbers_are_all_different(ranks: int, bits: int) -> None:
    meetings = Meetings(random.Random(1))
    count = 1_000_000 if ranks == 1 else 20_000
    numbers = np.fromiter(
        (meetings.new(n % ranks, ranks, (1, 1), bits).number for n in range(count)), np.int64, count
    )
    assert len(np.unique(numbers)) == count
    assert numbers.min() > 0 and numbers.max() < 2**bits
    assert (numbers % ranks == np.arange(count) % ranks).all()


def test_transfer_ids_and_processes_differ() -> None:
    one, two = Meetings(), Meetings()
    found = [each.new(0, 1, (1, 1)) for each in (one, two) for _ in range(1000)]
    assert len({each.transfer_id for each in found}) == len(found)
    assert len({each.number for each in found}) == len(found)


def test_number_zero_is_an_engines_own() -> None:
    meetings = Meetings(random.Random(1))
    meetings._at, meetings._step = (1 << 62) - 1, 1
    assert meetings.new(0, 1, (1, 1)).number == 1
