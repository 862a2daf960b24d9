"""History: what counters grew by, step by step, within bounds, and rows of processes as one."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.request_record import RequestRecord
from dynamo_router.server.dashboard.history import (
    FIELDS,
    GAUGES,
    KEPT_STEPS,
    OF_WORKERS,
    STEP_S,
    WIDTH,
    PoolHistory,
    ProcessHistory,
    Ring,
    Row,
    merged_rows,
)
from dynamo_router.server.metrics import BUCKETS, REQUEST_COUNTS, HttpAnswers


class Counted:
    """A pool whose counters a test sets."""

    def __init__(self) -> None:
        self.numbers = [0] * (len(REQUEST_COUNTS) + 2 * BUCKETS)
        self.now = [0] * (len(GAUGES) + len(OF_WORKERS))

    def counts(self) -> Sequence[int]:
        return self.numbers

    def gauges(self) -> Sequence[int]:
        return self.now


def field(row: Row, name: str) -> int:
    return row[2 + FIELDS.index(name)]


class Fixture:
    """Two pools, each with a model of its own, at a time that the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.http = HttpAnswers()
        self.pools = {"a": Counted(), "b": Counted()}
        histories = [(name, PoolHistory(pool)) for name, pool in self.pools.items()]
        self.history = ProcessHistory(self.clock, self.http)
        self.history.watch(lambda: histories)
        self.step = int(self.clock.now() // STEP_S)

    def end_step(self, seconds: float = STEP_S) -> None:
        self.clock.advance(seconds)
        list(self.history.put(self.step))
        self.step = int(self.clock.now() // STEP_S)

    def answer(self, status: int, model: str = "a", route: str = "/v1/completions") -> None:
        self.http.count(RequestRecord(route=route, model=model, status=status, error="why"))


def test_a_row_is_what_counters_grew_by_and_gauges_now() -> None:
    fixture = Fixture()
    pool = fixture.pools["a"]
    pool.numbers[0], pool.now[0] = 7, 3
    fixture.end_step()
    pool.numbers[0], pool.numbers[len(REQUEST_COUNTS)] = 9, 1
    fixture.end_step(6.0)
    first, second = fixture.history.rows("", -1)
    assert second[0] == first[0] + 1 and [first[1], second[1]] == [5000, 6000]
    assert [field(first, "ok"), field(second, "ok")] == [7, 2]
    assert [field(first, "in_flight"), field(second, "in_flight")] == [3, 3]
    # The histograms stand behind the gauges.
    assert second[2 + len(FIELDS)] == 1 and first[2 + len(FIELDS)] == 0
    assert fixture.history.rows("", first[0]) == [second]
    assert fixture.history.rows("", second[0]) == []


def test_models_by_themselves_and_all_together() -> None:
    fixture = Fixture()
    fixture.pools["a"].numbers[0], fixture.pools["b"].numbers[0] = 1, 10
    fixture.pools["a"].now[2:], fixture.pools["b"].now[2:] = [1, 1, 1, 1], [2, 2, 2, 2]
    for status in (200, 404, 503, 499):
        fixture.answer(status)
    fixture.answer(404, model="", route="unknown")
    fixture.answer(503, model="", route="/health")  # of a probe
    fixture.end_step()
    (whole,), (one,) = fixture.history.rows("", -1), fixture.history.rows("a", -1)
    assert (field(whole, "ok"), field(one, "ok")) == (11, 1)
    assert (field(whole, "workers"), field(one, "workers")) == (3, 1)
    assert [field(one, name) for name in FIELDS[:4]] == [1, 1, 1, 1]
    assert [field(whole, name) for name in FIELDS[:4]] == [1, 2, 1, 1]
    assert fixture.history.models == ["a", "b"]
    assert not any(fixture.history.rows("nothing", -1)[0][2:])


def test_it_is_bounded_and_forgets_what_is_older() -> None:
    fixture = Fixture()
    sizes = set[int]()
    for _ in range(2 * KEPT_STEPS):
        fixture.answer(200)
        fixture.end_step()
        sizes.add(fixture.history.nbytes)
    rows = fixture.history.rows("", -1)
    assert len(rows) == KEPT_STEPS and rows[-1][0] - rows[0][0] == KEPT_STEPS - 1
    assert len(sizes) == 1 and Ring(WIDTH).nbytes < 100_000


def test_many_models_have_a_bounded_history() -> None:
    fixture = Fixture()
    for n in range(1000):
        fixture.answer(200, model=f"m{n}")
    fixture.end_step()
    assert len(fixture.history.models) <= 35
    (row,) = fixture.history.rows("", -1)
    assert field(row, "http_ok") == 1000


def test_a_gap_has_no_rows_and_loses_nothing() -> None:
    fixture = Fixture()
    fixture.end_step()
    before = fixture.step
    fixture.pools["a"].numbers[0] = 5
    fixture.clock.advance(600)  # the machine slept
    fixture.step = int(fixture.clock.now() // STEP_S)
    fixture.end_step()
    rows = fixture.history.rows("", before - 1)
    assert [row[0] for row in rows] == [fixture.step - 1]
    assert rows[0][1] == 605_000 and field(rows[0], "ok") == 5


def test_a_step_that_ends_twice_loses_nothing() -> None:
    fixture = Fixture()
    pool, step = fixture.pools["a"], fixture.step
    pool.numbers[0] = 5
    fixture.end_step()
    pool.numbers[0] = 6
    for again in (step, step - 1):
        list(fixture.history.put(again))
    fixture.end_step()
    assert [field(row, "ok") for row in fixture.history.rows("", -1)] == [5, 1]


async def test_a_timer_that_is_early_ends_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture()
    waits: list[float] = []

    async def early(seconds: float) -> None:
        if not seconds:
            return
        waits.append(seconds)
        if len(waits) > 4:
            raise asyncio.CancelledError
        fixture.clock.advance(seconds * (0.75 if len(waits) % 2 else 1.0))

    monkeypatch.setattr("dynamo_router.server.dashboard.history.asyncio.sleep", early)
    with pytest.raises(asyncio.CancelledError):
        await fixture.history._run()
    assert [row[0] for row in fixture.history.rows("", -1)] == [200, 201]
    assert waits[:4] == [5.0, 1.25, 5.0, 1.25]


def test_a_counter_that_began_anew_is_no_negative_rate() -> None:
    fixture = Fixture()
    fixture.pools["a"].numbers[0] = 50
    fixture.end_step()
    fixture.pools["a"].numbers[0] = 3
    fixture.end_step()
    assert [field(row, "ok") for row in fixture.history.rows("", -1)] == [50, 3]


def test_processes_add_up_but_share_their_workers() -> None:
    numbers = np.zeros((2, WIDTH), dtype=int)
    numbers[:, FIELDS.index("ok")] = 3, 4
    numbers[:, FIELDS.index("queued")] = 1, 2
    numbers[:, FIELDS.index("ready")] = 8, 7
    numbers[:, FIELDS.index("kv_used")] = 100, 90
    numbers[:, len(FIELDS)] = 5, 6
    one, other = ([9, 5000 + at, *row.tolist()] for at, row in enumerate(numbers))
    (row,) = merged_rows([[one], [other]])
    assert row[:2] == [9, 5001]
    assert [field(row, name) for name in ("ok", "queued", "ready", "kv_used")] == [7, 3, 8, 100]
    assert row[2 + len(FIELDS)] == 11
    alone = [10, *other[1:]]
    assert merged_rows([[one, alone], [other]]) == [row, alone]


@pytest.mark.parametrize("row", [[1], [1, 2, 3], [1] * (WIDTH + 9)])
def test_rows_of_another_version_are_left_out(row: Row) -> None:
    assert merged_rows([[row]]) == []


def test_errors_are_kept_by_route_model_and_status() -> None:
    fixture = Fixture()
    for _ in range(3):
        fixture.answer(503)
    fixture.answer(404, model="", route="unknown")
    fixture.answer(200)
    fixture.answer(499)
    newest, before = fixture.http.faults(10)
    assert (newest.route, newest.status, newest.answers) == ("unknown", 404, 1)
    assert (before.model, before.status, before.answers, before.error) == ("a", 503, 3, "why")
    assert fixture.http.faults(1) == [newest]
