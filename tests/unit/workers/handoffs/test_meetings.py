"""Ids under which two engines meet: none twice, and of the rank that is meant."""

import random

import numpy as np
import pytest

from dynamo_router.workers.handoffs import Meetings
from dynamo_router.workers.handoffs.meetings import SHARE_BITS, share_of


@pytest.mark.parametrize("bits", [62, 31])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_numbers_are_all_different(ranks: int, bits: int) -> None:
    meetings = Meetings(random.Random(1))
    # Of 31 bits drawn at random some ten would be alike.
    count = 200_000 if (ranks, bits) == (1, 31) else 20_000
    numbers = np.fromiter(
        (meetings.new(n % ranks, ranks, (1, 1), bits).number for n in range(count)), np.int64, count
    )
    assert len(np.unique(numbers)) == count
    assert numbers.min() > 0 and numbers.max() < 2**bits
    assert (numbers % ranks == np.arange(count) % ranks).all()


def numbers_of(meetings: Meetings, count: int) -> np.ndarray:
    """As SGLang has them over gRPC, of 31 bits."""
    return np.fromiter((meetings.new(0, 1, (1, 1), 31).number for _ in range(count)), np.int64)


def test_routers_that_know_each_other_never_make_the_same_number() -> None:
    rng = random.Random(2)
    ids = [rng.getrandbits(53) for _ in range(8)]
    ids[1] = ids[0] + (1 << SHARE_BITS)  # they begin at the same share
    routers = [Meetings(rng) for _ in ids]
    for router_id, router in zip(ids, routers, strict=True):
        others = {each for each in ids if each != router_id}
        router.join(router_id, lambda others=others: others)  # type: ignore[misc]
    found = np.concatenate([numbers_of(router, 30_000) for router in routers])
    assert len(np.unique(found)) == len(found)


def test_all_routers_that_are_counted_have_shares_of_their_own() -> None:
    rng = random.Random(3)
    for count in (1, 2, 65, 1 << SHARE_BITS):
        ids = {rng.getrandbits(53) for _ in range(count)}
        assert len({share_of(each, ids) for each in ids}) == count
    many = {rng.getrandbits(53) for _ in range(500)}
    assert max(share_of(each, many) for each in many) < 1 << SHARE_BITS


def test_pools_of_one_process_never_make_the_same_number() -> None:
    """Though they have the same share, of 2^13 numbers here."""
    pools = [Meetings(), Meetings()]
    for pool in pools:
        pool.join(5, frozenset)
    count = (1 << 12) - 1
    found = [pool.new(0, 1, (1, 1), 13 + SHARE_BITS).number for _ in range(count) for pool in pools]
    assert len(set(found)) == len(found)


def test_a_router_that_joins_later_makes_other_numbers() -> None:
    ids: set[int] = set()
    one, two = Meetings(random.Random(4)), Meetings(random.Random(5))
    one.join(5, lambda: ids)
    two.join(5 + (1 << SHARE_BITS), lambda: {5})
    before = numbers_of(one, 1000)
    ids.add(5 + (1 << SHARE_BITS))
    after = numbers_of(one, 1000)
    assert len(np.unique(np.concatenate([before, after, numbers_of(two, 1000)]))) == 3000


def test_routers_that_do_not_know_each_other_meet_as_rarely_as_chance_has_it() -> None:
    """Of 12 bits, so that it can be counted: one of n in use is met n / 2^12 times."""
    rng, bits, n, tried = random.Random(6), 12, 8, 20_000
    met = 0
    for _ in range(tried):
        one, two = Meetings(rng), Meetings(rng)
        used = {two.new(0, 1, (1, 1), bits).number for _ in range(n)}
        met += one.new(0, 1, (1, 1), bits).number in used
    expected = tried * n / 2**bits
    assert abs(met - expected) < 4 * expected**0.5, (met, expected)


def test_transfer_ids_and_processes_differ() -> None:
    one, two = Meetings(), Meetings()
    found = [each.new(0, 1, (1, 1)) for each in (one, two) for _ in range(1000)]
    assert len({each.transfer_id for each in found}) == len(found)
    assert len({each.number for each in found}) == len(found)


def test_number_zero_is_an_engines_own() -> None:
    meetings = Meetings(random.Random(1))
    meetings._walk._at, meetings._walk._step = (1 << 62) - 1, 1
    meetings.join(1 << SHARE_BITS, frozenset)
    assert meetings.new(0, 1, (1, 1)).number == 1
