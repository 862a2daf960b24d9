"""Bookings of fronts: each is one front's, and is freed once, whatever comes in which order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.server.fronts.leases import Leases


class LeaseMachine(RuleBasedStateMachine):
    """The decider's table (`booked`) beside what the front is owed.

    Questions are answered in any order; a booking exists in the table from its answer until the
    front frees or forgets it, or its connection ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.booked: set[str] = set()  # in the slots
        self.asked: dict[int, str] = {}  # not answered, not forgotten
        self.abandoned: dict[int, str] = {}  # forgotten, and yet to be answered
        self.serial = 0

    @rule()
    def ask(self) -> None:
        self.serial += 1
        self.asked[self.serial] = f"r{self.serial}"
        self.leases.ask(self.serial, f"r{self.serial}")

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), books=st.booleans())
    def answer(self, data: st.DataObject, books: bool) -> None:
        serial = data.draw(st.sampled_from(sorted(self.asked)))
        booking = self.asked.pop(serial)
        if books:
            self.booked.add(booking)
        assert self.leases.answer(serial, booked=books)

    @precondition(lambda self: self.abandoned)
    @rule(data=st.data())
    def answer_nobody(self, data: st.DataObject) -> None:
        serial = data.draw(st.sampled_from(sorted(self.abandoned)))
        booking = self.abandoned.pop(serial)
        self.booked.add(booking)
        if not self.leases.answer(serial, booked=True):
            self.booked.remove(booking)
        assert booking not in self.booked

    @precondition(lambda self: self.serial)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        serial = data.draw(st.integers(1, self.serial))
        if self.leases.forget(serial, f"r{serial}"):
            self.booked.remove(f"r{serial}")
        if serial in self.asked:
            self.abandoned[serial] = self.asked.pop(serial)

    @precondition(lambda self: self.serial)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        booking = f"r{data.draw(st.integers(1, self.serial))}"
        assert self.leases.free(booking) is (booking in self.booked)
        self.booked.discard(booking)

    @rule()
    def end(self) -> None:
        waiting, booked = self.leases.end()
        assert set(waiting) == self.asked.keys()
        assert set(booked) == self.booked and len(booked) == len(self.booked)
        self.abandoned |= self.asked
        self.asked.clear()
        self.booked.clear()

    @invariant()
    def both_agree(self) -> None:
        assert set(self.leases.booked) == self.booked
        assert len(self.leases) == len(self.booked)
        assert self.leases.waiting == len(self.asked)


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_number_is_used_once_at_a_time() -> None:
    leases = Leases()
    leases.ask(1, "a")
    with pytest.raises(ValueError, match="asked already"):
        leases.ask(1, "b")
    assert leases.answer(1, booked=True) and "a" in leases
