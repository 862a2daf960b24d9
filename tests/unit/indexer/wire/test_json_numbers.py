"""Hashes in JSON: every length, both ends of the range, in the layout that has a fast path and out
of it."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.wire.codec import decode_cache_event
from dynamo_router.indexer.wire.events import Removed, Stored, StoredBlock

NUMBERS = st.integers(0, 20).flatmap(lambda digits: st.integers(0, min(10**digits, 2**64 - 1)))
# Where a message ends soon, the fast path gives way to the general one.
TAILS = ("}", " }", ',"mm_extra_info":null}', ',"note":"' + "x" * 90 + '"}')


def stored(first: int | str, second: int | str, tail: str, space: str = "") -> bytes:
    block = f'{{"block_hash":{space}{first},"tokens_hash":{space}{second}{tail}'
    return f'{{"event_id":1,"data":{{"stored":{{"blocks":[{block},{block}]}}}}}}'.encode()


@given(first=NUMBERS, second=NUMBERS, tail=st.sampled_from(TAILS), space=st.sampled_from(["", " "]))
@example(first=2**64 - 1, second=2**64 - 1, tail="}", space="")
@example(first=10**19, second=10**8, tail="}", space="")
@example(first=0, second=99_999_999, tail="}", space="")
def test_numbers_of_any_length(first: int, second: int, tail: str, space: str) -> None:
    event = decode_cache_event(1, stored(first, second, tail, space))
    assert event.data == Stored(None, (StoredBlock(first, second),) * 2)


@given(hashes=st.lists(NUMBERS | st.integers(-(2**63), -1), max_size=30))
def test_lists_of_hashes(hashes: list[int]) -> None:
    data = {"event_id": 1, "data": {"removed": {"block_hashes": hashes}}}
    event = decode_cache_event(1, msgspec.json.encode(data))
    assert event.data == Removed(tuple(number % 2**64 for number in hashes))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (str(2**64), "range"),
        ("99999999999999999999", "range"),
        ("1" * 40, "range"),
        ("-9223372036854775809", "range"),
        ("012345678", "neither msgpack nor JSON"),
        ("00", "neither msgpack nor JSON"),
        ("1234567a", "neither msgpack nor JSON"),
        ("12345678:", "neither msgpack nor JSON"),
        ("12345678/", "neither msgpack nor JSON"),
        ("-", "neither msgpack nor JSON"),
        ("1234567890.5", "wrong type"),
        ("1e9", "wrong type"),
        ('"12345678"', "wrong type"),
    ],
)
def test_what_is_no_hash_is_refused(number: str, reason: str, tail: str) -> None:
    for message in (stored(number, 1, tail), stored(1, number, tail)):
        with pytest.raises(EventError, match=reason):
            decode_cache_event(1, message)
