"""Grants of blocks: no block has two writers, and none is free while it may be written.

The machine makes any step, in any order; the walk makes as many as GRANTS_STEPS says.
"""

import os
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.base.errors import CapacityError
from dynamo_router.engines.transfer import BlockGrants, BlockState, GrantError

BLOCKS, DRAIN_S = 24, 2.0
ENGINES = ("p1", "p2", "p3")
STEPS = int(os.environ.get("GRANTS_STEPS", "20000"))


class OracleGrants:
    """See BlockGrants. Permissions to write outlive what the owner knows: `writers`."""

    def __init__(self, blocks: int) -> None:
        self.free = set(range(blocks))
        self.owned: set[int] = set()
        self.landed: set[int] = set()
        self.granted: dict[str, set[int]] = {}
        self.quarantined: dict[str, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        """by attempt: blocks into which its writer may really write now"""
        self.engine: dict[str, str] = {}
        self.dead: dict[str, float] = {}
        """when the last bytes of an attempt's dead writer have arrived"""

    def allocate(self, blocks: list[int]) -> None:
        assert set(blocks) <= self.free and len(set(blocks)) == len(blocks)
        assert not any(set(blocks) & each for each in self.writers.values()), "still written"
        self.free -= set(blocks)
        self.owned |= set(blocks)

    def give_free(self, blocks: list[int]) -> None:
        self.owned -= set(blocks)
        self.landed -= set(blocks)
        self.free |= set(blocks)

    def grant(self, attempt: str, blocks: list[int], engine: str) -> None:
        assert set(blocks) <= self.owned
        assert not any(set(blocks) & each for each in self.writers.values()), "two writers"
        self.owned -= set(blocks)
        self.granted[attempt] = self.writers[attempt] = set(blocks)
        self.engine[attempt] = engine

    def end_writer(self, attempt: str, done: bool) -> None:
        """Its writer's word, or a revocation that was carried out."""
        self.writers.pop(attempt)
        self.engine.pop(attempt)
        self.dead.pop(attempt, None)
        if attempt in self.quarantined:
            self.free |= self.quarantined.pop(attempt)
        elif done:
            self.landed |= self.granted.pop(attempt)
        else:
            self.owned |= self.granted.pop(attempt)

    def quarantine(self, attempt: str) -> None:
        if attempt in self.granted:
            self.quarantined[attempt] = self.granted.pop(attempt)

    def kill(self, engine: str, drained_at: float) -> None:
        for attempt in [each for each, of in self.engine.items() if of == engine]:
            self.quarantine(attempt)
            self.dead.setdefault(attempt, drained_at)

    def drain(self, now: float) -> set[str]:
        over = {attempt for attempt, at in self.dead.items() if at <= now}
        for attempt in over:
            self.end_writer(attempt, False)
        return over


class Pair:
    """The grants and their oracle, moved together; choices are numbers."""

    def __init__(self) -> None:
        self.grants = BlockGrants(BLOCKS, drain_s=DRAIN_S)
        self.oracle = OracleGrants(BLOCKS)
        self.now = 0.0
        self.attempts = 0
        self.seen_epochs: set[int] = set(self.grants.epochs.tolist())
        self.rights: dict[str, tuple[list[int], tuple[int, ...]]] = {}

    def allocate(self, count: int) -> None:
        if count > len(self.oracle.free):
            with pytest.raises(CapacityError, match="are free"):
                self.grants.allocate(count)
            return
        self.oracle.allocate(self.grants.allocate(count))

    def free(self, choice: int, count: int) -> None:
        can = sorted(self.oracle.owned | self.oracle.landed)
        blocks = [can[(choice + n) % len(can)] for n in range(min(count, len(can)))]
        self.grants.free(blocks)
        self.oracle.give_free(blocks)

    def grant(self, choice: int, count: int) -> None:
        can = sorted(self.oracle.owned)
        if not can:
            return
        blocks = [can[(choice + n) % len(can)] for n in range(min(count, len(can)))]
        self.attempts += 1
        attempt, engine = f"a{self.attempts}", ENGINES[choice % len(ENGINES)]
        granted = self.grants.grant(blocks, attempt, deadline=self.now + 5, writer=engine)
        assert list(granted.blocks) == blocks
        self.rights[attempt] = (blocks, granted.epochs)
        self.oracle.grant(attempt, blocks, engine)

    def refuse(self, choice: int) -> None:
        """What must not be freed or granted is neither."""
        block = choice % BLOCKS
        if block not in self.oracle.owned | self.oracle.landed:
            with pytest.raises(GrantError):
                self.grants.free([block])
        if block not in self.oracle.owned:
            with pytest.raises(GrantError):
                self.grants.grant([block], "no", deadline=0.0)
        if open_attempts := sorted(self.oracle.writers):
            with pytest.raises(GrantError, match="has a grant"):
                self.grants.grant([], open_attempts[0], deadline=0.0)

    def end(self, choice: int, done: bool) -> None:
        """A writer's word, of an attempt that is open or long over."""
        attempt = f"a{choice % (self.attempts + 1)}"
        known = attempt in self.oracle.writers
        assert (self.grants.land if done else self.grants.fail)(attempt) == known
        if known:
            self.oracle.end_writer(attempt, done)

    def quarantine(self, choice: int) -> None:
        attempt = f"a{choice % (self.attempts + 1)}"
        assert self.grants.quarantine(attempt) == (attempt in self.oracle.writers)
        self.oracle.quarantine(attempt)

    def withdraw(self, choice: int) -> None:
        attempt = f"a{choice % (self.attempts + 1)}"
        assert self.grants.withdraw(attempt) == (attempt in self.oracle.writers)

    def kill(self, choice: int) -> None:
        engine = ENGINES[choice % len(ENGINES)]
        died = self.grants.on_writer_dead(engine, self.now)
        assert {each.attempt for each in died} == {
            attempt for attempt, of in self.oracle.engine.items() if of == engine
        }
        self.oracle.kill(engine, self.now + DRAIN_S)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = {each.attempt for each in self.grants.overdue(self.now)}
        assert late <= set(self.oracle.granted)
        drained = {each.attempt for each in self.grants.drain(self.now)}
        assert drained == self.oracle.drain(self.now)

    def check(self) -> None:
        oracle, grants = self.oracle, self.grants
        states = {
            BlockState.FREE: oracle.free,
            BlockState.ALLOCATED: oracle.owned,
            BlockState.LANDED: oracle.landed,
            BlockState.GRANTED: set().union(*oracle.granted.values()),
            BlockState.QUARANTINED: set().union(*oracle.quarantined.values()),
        }
        assert sum(map(len, states.values())) == BLOCKS
        for state, blocks in states.items():
            assert all(grants.state(block) is state for block in blocks)
        assert grants.free_blocks == len(oracle.free)
        assert set(grants.open_attempts) == set(oracle.writers)
        epochs = grants.epochs.tolist()
        assert len(set(epochs)) == BLOCKS
        for attempt, (blocks, given) in list(self.rights.items()):
            if attempt not in oracle.granted:
                assert not set(given) & set(epochs), "a right that has ended still fits"
                del self.rights[attempt]
            else:
                now = grants.epochs_of(blocks)
                assert now == given or not set(now) & set(given)  # withdrawn whole or not


NUMBERS = st.integers(0, 10_000)
COUNTS = st.integers(0, 9)


class Grants(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(count=COUNTS)
    def allocate(self, count):
        self.pair.allocate(count)

    @rule(choice=NUMBERS, count=COUNTS)
    def free(self, choice, count):
        self.pair.free(choice, count)

    @rule(choice=NUMBERS, count=st.integers(1, 6))
    def grant(self, choice, count):
        self.pair.grant(choice, count)

    @rule(choice=NUMBERS)
    def refuse(self, choice):
        self.pair.refuse(choice)

    @rule(choice=NUMBERS, done=st.booleans())
    def end(self, choice, done):
        self.pair.end(choice, done)

    @rule(choice=NUMBERS)
    def quarantine(self, choice):
        self.pair.quarantine(choice)

    @rule(choice=NUMBERS)
    def withdraw(self, choice):
        self.pair.withdraw(choice)

    @rule(choice=NUMBERS)
    def kill(self, choice):
        self.pair.kill(choice)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.pair.wait(seconds)

    @invariant()
    def agree(self):
        self.pair.check()


TestGrants = Grants.TestCase


def test_a_long_walk_agrees_with_the_oracle() -> None:
    random = Random(28)
    pair = Pair()
    for number in range(STEPS):
        choice, count = random.randrange(10_000), random.randrange(1, 7)
        recent = max(0, pair.attempts - random.randrange(6))
        step = random.randrange(12)
        if step < 3:
            pair.allocate(count)
        elif step < 6:
            pair.grant(choice, count)
        elif step < 8:
            pair.end(recent, random.random() < 0.7)
        elif step == 8:
            pair.quarantine(recent)
        elif step == 9:
            pair.free(choice, count)
            pair.wait(random.random())
        elif step == 10:
            pair.withdraw(recent) if number % 2 else pair.refuse(choice)
        elif number % 5 == 0:
            pair.kill(choice)
        pair.check()
    assert pair.attempts > STEPS // 50
