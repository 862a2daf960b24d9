"""What the token cache keeps, within its bytes, and at whose cost."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.processor import NO_TENANT, PieceCache, Tenant
from dynamo_router.frontend.processor.piece_cache import OVERHEAD, SHARE_OVERHEAD
from dynamo_router.workers.dialects import pack_tokens, unpack_tokens

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


class Parts:
    """What has pieces of these names, whose ids say what they are found in."""

    def __init__(self, names: frozenset[int], number: int) -> None:
        self.names, self.number = sorted(names), number

    def __len__(self) -> int:
        return 100 * len(self.names)

    @property
    def part_keys(self) -> bytes:
        return b"".join(map(key_of, self.names))

    def part(self, key: bytes) -> bytes:
        assert key in map(key_of, self.names)
        return packed_of(self.number)[1]


def key_of(name: int) -> bytes:
    return b"%016d" % name


def packed_of(number: int) -> tuple[bytes, bytes]:
    ids = np.array([number, 1 << 20], np.uint32)
    return pack_tokens(ids)[0], ids.tobytes()


NAMES = st.integers(0, 12)
PUT = st.tuples(st.just("put"), NAMES, st.integers(0, 2))
PUT_WHOLE = st.tuples(st.just("whole"), st.frozensets(NAMES, max_size=5), st.integers(0, 2))
DROP = st.tuples(st.just("drop"), st.integers(1, 3), st.none())


@given(st.lists(st.one_of(PUT, PUT_WHOLE, DROP), max_size=60), st.integers(4000, 20_000))
def test_pieces_are_found_where_they_are_kept(steps: list[Any], most: int) -> None:
    """In what has them, as long as that is there, or by themselves; and once in each account."""
    cache, made = PieceCache(most), {}
    for number, (kind, what, account) in enumerate(steps):
        tenant = Tenant(str(account), None)
        if kind == "put":
            if cache.ids(key_of(what)) is None:
                cache.put(key_of(what), packed_of(number)[0], tenant)
        elif kind == "whole":
            whole = made[b"%d" % number] = Parts(what, number)
            cache.put_whole(b"%d" % number, whole, tenant)
        else:
            for _ in range(min(what, len(cache))):
                cache._drop()
        there = {key: each for key, each in made.items() if key in cache._shares}
        of_wholes = {key_of(name) for whole in there.values() for name in whole.names}
        assert set(cache._wholes) <= of_wholes and set(cache._wholes.values()) <= set(there)
        if kind == "whole" and b"%d" % number in there:
            found = {cache.ids(key_of(name)) for name in what}
            assert found <= {packed_of(number)[1]}
            assert not any(
                cache._shares[key_of(name)] is cache._shares[b"%d" % number]
                for name in what
                if key_of(name) in cache._shares
            )
        sizes = sum(
            len(each) + OVERHEAD
            for share in {*cache._shares.values()}
            for each in share.pieces.values()
        )
        assert cache.size == sizes + SHARE_OVERHEAD * len({*cache._shares.values()}) <= most


@given(st.lists(st.integers(0, (1 << 32) - 1)), st.sampled_from([7, 14, 17, 21, 32]), st.data())
def test_ids_are_those_that_were_packed(ids: list[int], bits: int, data: st.DataObject) -> None:
    ids = [each % (1 << bits) for each in ids]
    cut = data.draw(st.integers(0, len(ids)))
    parts = [pack_tokens(np.asarray(each, np.uint32))[0] for each in (ids[:cut], ids[cut:])]
    packed = b"".join(parts)
    assert len(packed) <= (bits + 6) // 7 * len(ids)
    for begin, end, wanted in ((0, len(packed), ids), (len(parts[0]), len(packed), ids[cut:])):
        assert np.frombuffer(unpack_tokens(packed, begin, end), np.uint32).tolist() == wanted


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (2, 1), (0, 5), (0, 1)])
def test_what_no_ids_end_at_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="not"):
        unpack_tokens(pack_tokens(np.array([300, 300], np.uint32))[0], begin, end)
