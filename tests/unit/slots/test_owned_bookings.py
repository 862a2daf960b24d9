"""Bookings with an owner: its share, and that whatever ends a booking gives it back."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.slots.table import SlotTable

OWNERS = st.sampled_from([None, "a", "b"])


def hashes(count: int, salt: int = 0) -> npt.NDArray[np.uint64]:
    return np.arange(salt, salt + count, dtype=np.uint64)


def table(**more: float) -> SlotTable:
    made = SlotTable(4, max_entries=100, owner_share=0.2, **more)  # type: ignore[arg-type]
    made.add_worker(0)
    return made


def book(made: SlotTable, name: str, blocks: int, owner: str | None, now: float = 0.0) -> bool:
    found = hashes(blocks)
    return made.add_request(name, 0, found, isl=4 * blocks, overlap_blocks=0, now=now, owner=owner)


def test_an_owner_has_its_share_and_others_have_theirs() -> None:
    made = table()
    assert book(made, "1", 9, "a") and book(made, "2", 9, "a")
    assert not book(made, "3", 0, "a") and (made.over_share, made.refused) == (1, 0)
    assert book(made, "3", 19, "b") and book(made, "4", 30, None)
    assert not book(made, "5", 60, None) and made.refused == 1
    assert made.free("1") and book(made, "6", 9, "a")
    made.check_integrity()


def test_bookings_that_are_refused_or_doubled_take_nothing() -> None:
    made = table()
    assert book(made, "1", 3, "a") and not book(made, "1", 3, "a") and not book(made, "2", 90, "b")
    assert (made.entries_of("a"), made.entries_of("b"), made.duplicates) == (4, 0, 1)
    made.check_integrity()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["book", "prefilled", "free", "expire", "lose the worker", "touch"]),
            st.integers(0, 6),
            st.integers(0, 12),
            OWNERS,
        )
    )
)
def test_what_owners_have_is_what_is_booked(steps: list[tuple[str, int, int, str | None]]) -> None:
    made, now = table(expiry_s=5.0), 0.0
    held: dict[str, tuple[str | None, int]] = {}
    computed: set[str] = set()
    for what, number, blocks, owner in steps:
        name = str(number)
        now += 1.0
        if what == "book" and book(made, name, blocks, owner, now):
            held[name] = owner, 1 + blocks
            computed.discard(name)
        elif what == "prefilled":
            assert made.mark_prefill_completed(name) == (name in held)
            computed.add(name)
        elif what == "free":
            assert made.free(name) == (held.pop(name, None) is not None)
        elif what == "touch":
            made.touch_all([name, "nobody"], now)
        elif what == "lose the worker":
            assert sorted(made.remove_worker(0)) == sorted(held)
            held.clear()
            made.add_worker(0)
        for expired in made.expire(now):
            del held[expired]
        for each in ("a", "b"):
            assert made.entries_of(each) == sum(n for who, n in held.values() if who == each) <= 20
        certain = [n - 1 for name, (who, n) in held.items() if who is None and name not in computed]
        assert made.certain_prefill_tokens().tolist() == [4 * sum(certain)]
        assert made.has_owned == any(who is not None for who, _ in held.values())
        made.check_integrity()
