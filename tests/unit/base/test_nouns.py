"""The nouns of the ground floor: workers, clocks, backoff, errors."""

import copy
import pickle
from random import Random

import numpy as np
import pytest

from dynamo_router.base.backoff import Backoff
from dynamo_router.base.clock import ManualClock, SystemClock
from dynamo_router.base.errors import (
    ConfigError,
    EventError,
    InvalidRequestError,
    NoWorkersError,
    RouterError,
    WorkerError,
)
from dynamo_router.base.identity import WorkerWithDpRank, address_worker_id, as_worker


def test_a_worker_is_its_tuple() -> None:
    worker = as_worker((7, 2))
    assert isinstance(worker, WorkerWithDpRank)
    assert worker == (7, 2)
    assert hash(worker) == hash((7, 2))
    assert {(7, 2): "x"}[worker] == "x"
    assert as_worker(7) == (7, 0) == WorkerWithDpRank(7)
    assert as_worker(worker) == worker


def test_numpy_integers_become_plain_ones() -> None:
    worker = as_worker((np.uint64(2**64 - 1), np.uint32(3)))
    assert worker == (2**64 - 1, 3)
    assert [type(part) for part in worker] == [int, int]


@pytest.mark.parametrize(
    "worker",
    [-1, 2**64, (1, -1), (1, 2**32), (2**64, 0), (1,), (1, 2, 3), WorkerWithDpRank(-1, 0)],
)
def test_a_worker_out_of_range_is_refused(worker: int) -> None:
    with pytest.raises(ValueError):
        as_worker(worker)


@pytest.mark.parametrize("worker", ["7", 1.0, None, (1, "0")])
def test_a_worker_of_another_type_is_refused(worker: int) -> None:
    with pytest.raises(TypeError):
        as_worker(worker)


def test_an_address_names_a_worker_for_ever() -> None:
    # The golden value: a change of it would rename every engine without an id of its own.
    assert address_worker_id("127.0.0.1:50051") == 3132625991789934
    assert address_worker_id("[::1]:50051") < 2**53
    assert address_worker_id("127.0.0.1:50051") != address_worker_id("127.0.0.1:50052")


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:http", "grpc://host"])
def test_no_worker_without_host_and_port(address: str) -> None:
    with pytest.raises(ValueError):
        address_worker_id(address)


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(0)
    clock.advance(1.5)
    assert clock.now() == 6.5
    for seconds in (-0.1, float("nan")):
        with pytest.raises(ValueError):
            clock.advance(seconds)
    assert clock.now() == 6.5


def test_the_system_clock_does_not_go_back() -> None:
    clock = SystemClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_backoff_doubles_within_its_jitter_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    ceilings = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    for ceiling in ceilings:
        assert ceiling / 2 <= backoff.next() <= ceiling
    backoff.reset()
    assert backoff.next() <= 0.1


def test_two_backoffs_do_not_march_in_step() -> None:
    one, other = Backoff(rng=Random(1)), Backoff(rng=Random(2))
    assert [one.next() for _ in range(5)] != [other.next() for _ in range(5)]


@pytest.mark.parametrize(("first", "cap"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_backoff_refuses_bounds_that_are_none(first: float, cap: float) -> None:
    with pytest.raises(ValueError):
        Backoff(first, cap)


@pytest.mark.parametrize(
    ("error", "attribute"),
    [
        (ConfigError("bad", key="nats"), "key"),
        (InvalidRequestError("bad", field="token_ids"), "field"),
        (NoWorkersError("bad"), None),
        (WorkerError("bad", worker_id=7), "worker_id"),
        (EventError("bad", worker_id=7), "worker_id"),
    ],
)
def test_errors_keep_their_data_across_processes(error: RouterError, attribute: str | None) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(twin, RouterError)
        assert str(twin) == "bad"
        if attribute:
            assert getattr(twin, attribute) == getattr(error, attribute) is not None
