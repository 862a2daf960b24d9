"""What the token cache keeps, within its bytes, and at whose cost."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.processor import NO_TENANT, PieceCache, Tenant
from dynamo_router.frontend.processor.encoder import _narrow, _wide
from dynamo_router.frontend.processor.piece_cache import OVERHEAD, SHARE_OVERHEAD

IDS = b"x" * 600
PIECE = len(IDS) + OVERHEAD


def keys(tenant: Tenant, count: int) -> list[bytes]:
    return [f"{tenant} {number}".encode() for number in range(count)]


def fill(cache: PieceCache, tenant: Tenant, count: int) -> list[bytes]:
    made = keys(tenant, count)
    for key in made:
        cache.put(key, IDS, tenant)
    return made


def kept(cache: PieceCache, wanted: list[bytes]) -> int:
    return sum(cache.get(key) is not None for key in wanted)


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = PieceCache(SHARE_OVERHEAD + 4 * PIECE)
    first, *others = fill(cache, NO_TENANT, 4)
    assert cache.get(first) == IDS
    cache.put(b"one more", IDS, NO_TENANT)
    assert cache.get(others[0]) is None and kept(cache, [first, *others[1:], b"one more"]) == 4
    assert cache.dropped == 1 and cache.size == SHARE_OVERHEAD + 4 * PIECE


def test_nothing_is_kept_without_capacity() -> None:
    for most in (0, PIECE):
        cache = PieceCache(most)
        fill(cache, NO_TENANT, 2)
        assert len(cache) == cache.size == 0


def test_who_sends_most_does_not_push_others_out() -> None:
    cache = PieceCache(100 * PIECE)
    small = fill(cache, Tenant("a", 1), 20)
    for number in range(50):  # of another account, in whatever namespaces
        fill(cache, Tenant("b", number), 20)
    assert kept(cache, small) == 20
    large = fill(cache, Tenant("a", 2), 500)  # of its own account, in another namespace
    assert kept(cache, small) > 12 and kept(cache, large) > 12


def test_ten_thousand_tenants_with_a_conversation_each() -> None:
    """There is room for one in eight: it goes to those that were there last, not to a part of each
    conversation."""
    each = SHARE_OVERHEAD + 8 * PIECE
    cache = PieceCache(1250 * each)
    tenants = [Tenant("gateway", number) for number in range(10_000)]
    for tenant in tenants:
        fill(cache, tenant, 8)
    assert cache.size <= cache.most_bytes
    found = [kept(cache, keys(tenant, 8)) for tenant in tenants]
    assert found[-800:] == [8] * 800
    assert sum(found[2000:9000]) == 0


@given(
    puts=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 900), st.integers(0, 3), st.integers(0, 3)),
        max_size=120,
    )
)
def test_sizes_are_those_of_what_is_kept(puts: list[tuple[int, int, int, int]]) -> None:
    cache, sizes, draw = PieceCache(20_000), {}, random.Random(0)
    for key, size, account, namespace in puts:
        name = f"{key} {namespace}".encode()
        if draw.random() < 0.3:
            cache.get(name)
        elif name not in sizes or cache.get(name) is None:
            cache.put(name, b"x" * size, Tenant(str(account), namespace))
            sizes[name] = size
    left = [size for name, size in sizes.items() if cache.get(name) is not None]
    assert len(left) == len(cache)
    shares = {id(share) for share in cache._shares.values()}
    pieces = sum(left) + OVERHEAD * len(left)
    assert cache.size == pieces + SHARE_OVERHEAD * len(shares) <= cache.most_bytes


@given(st.lists(st.integers(0, (1 << 32) - 1)), st.sampled_from([14, 16, 17, 24, 32]))
def test_kept_ids_are_the_same_in_fewer_bytes(ids: list[int], bits: int) -> None:
    ids = [each % (1 << bits) for each in ids]
    raw = np.asarray(ids, np.uint32).tobytes()
    kept = _narrow(raw)
    assert _wide(kept) == raw
    assert len(kept) <= (2 if bits <= 16 else 3 if bits <= 24 else 4) * len(ids) + 1
