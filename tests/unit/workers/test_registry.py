"""The worker registry: numbers are dense, unique while held, and reused only when free."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.workers.registry import WorkerRegistry, WorkerState


def test_ranks_get_numbers_and_give_them_back() -> None:
    registry = WorkerRegistry()
    registry.add(7, dp_size=2)
    registry.add(8)
    assert [registry.number(WorkerWithDpRank(7, r)) for r in (0, 1)] == [0, 1]
    assert registry.worker(2) == (8, 0)
    assert registry.remove(7) and not registry.remove(7)
    registry.add(9)
    assert registry.number(WorkerWithDpRank(9, 0)) in (0, 1)
    assert registry.capacity == 3
    with pytest.raises(InvalidRequestError, match="worker .7, 0. is not registered"):
        registry.number(WorkerWithDpRank(7, 0))
    with pytest.raises(LookupError, match="no worker has number 99"):
        registry.worker(99)


def test_only_ready_and_uninhibited_workers_are_eligible() -> None:
    registry = WorkerRegistry()
    registry.add(1)
    registry.add(2, state=WorkerState.CONNECTING)
    assert registry.eligible(0.0).tolist() == [True, False]
    registry.set_state(2, WorkerState.READY)
    registry.inhibit(1, until=5.0)
    assert registry.eligible(4.9).tolist() == [False, True]
    assert registry.eligible(5.0).tolist() == [True, True]
    registry.set_state(1, WorkerState.REFUSED, "block size 16, the router's is 64")
    assert registry.eligible(9.0).tolist() == [False, True]
    assert (entry := registry.entry(1)) and entry.reason == "block size 16, the router's is 64"
    registry.set_state(404, WorkerState.READY)
    registry.inhibit(404, until=1.0)
    assert 404 not in registry and len(registry) == 2


def test_renewal_keeps_the_numbers_of_ranks_that_stay() -> None:
    registry = WorkerRegistry()
    told: list[tuple[str, WorkerWithDpRank, int]] = []

    def listener(what: str) -> Callable[[WorkerWithDpRank, int], None]:
        return lambda worker, number: told.append((what, worker, number))

    registry.on_add.append(listener("add"))
    registry.on_remove.append(listener("remove"))
    registry.add(1, dp_size=3)
    registry.add(1, dp_start=1, dp_size=3)
    assert told[3:] == [("remove", (1, 0), 0), ("add", (1, 3), 0)]
    assert registry.number(WorkerWithDpRank(1, 1)) == 1


@pytest.mark.parametrize("ranks", [0, -1, 10**6])
def test_impossible_ranks_are_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match=f"dp_size {ranks} is not in 1..4096"):
        WorkerRegistry().add(1, dp_size=ranks)


class RegistryAgainstModel(RuleBasedStateMachine):
    """A dict of ready flags per rank is all there is to know."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = WorkerRegistry()
        self.now = 0.0
        self.ranks: dict[int, range] = {}
        self.state: dict[int, WorkerState] = {}
        self.until: dict[int, float] = {}

    ids = st.integers(0, 5)

    @rule(worker_id=ids, start=st.integers(0, 2), size=st.integers(1, 3))
    def add(self, worker_id: int, start: int, size: int) -> None:
        self.registry.add(worker_id, dp_start=start, dp_size=size)
        self.ranks[worker_id] = range(start, start + size)
        self.state[worker_id] = WorkerState.READY
        self.until.pop(worker_id, None)

    @rule(worker_id=ids)
    def remove(self, worker_id: int) -> None:
        assert self.registry.remove(worker_id) == (worker_id in self.ranks)
        for table in (self.ranks, self.state, self.until):
            table.pop(worker_id, None)  # type: ignore[attr-defined]  # three dicts, one loop

    @rule(worker_id=ids, state=st.sampled_from(list(WorkerState)))
    def move(self, worker_id: int, state: WorkerState) -> None:
        self.registry.set_state(worker_id, state)
        if worker_id in self.ranks:
            self.state[worker_id] = state

    @rule(worker_id=ids, seconds=st.floats(0, 3))
    def inhibit(self, worker_id: int, seconds: float) -> None:
        self.registry.inhibit(worker_id, self.now + seconds)
        if worker_id in self.ranks:
            self.until[worker_id] = self.now + seconds

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def agree(self) -> None:
        eligible = self.registry.eligible(self.now)
        assert len(eligible) == self.registry.capacity
        expected = {}
        for worker_id, ranks in self.ranks.items():
            ready = self.state[worker_id] is WorkerState.READY
            free = self.until.get(worker_id, 0.0) <= self.now
            expected |= {(worker_id, rank): ready and free for rank in ranks}
        numbered = self.registry.numbered()
        assert {worker: bool(eligible[n]) for n, worker in numbered} == expected
        assert sum(eligible) == sum(expected.values())


TestRegistryAgainstModel = RegistryAgainstModel.TestCase
