"""What a front reports of workers is heard by the decider as if it had seen it itself."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import StatusCode
from dynamo_router.server.fronts.messages import Report
from dynamo_router.server.fronts.told_reports import ToldReports, take_report
from dynamo_router.workers.failures import Origin, judge
from dynamo_router.workers.request_reports import RequestReports


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def make(kind: Callable[..., RequestReports], clock: Clock, lost: list[int]) -> RequestReports:
    reports = kind(clock, None, on_changed=lambda worker: None, on_lost=lost.append)
    for worker in (1, 2, 3):
        reports.set_alive(worker, True)
    return reports


VERDICTS = [
    judge(Origin.CONNECT, StatusCode.UNAVAILABLE, started=False),
    judge(Origin.ENGINE, StatusCode.INTERNAL, started=False),
    judge(Origin.ENGINE, StatusCode.RESOURCE_EXHAUSTED, started=False),
    judge(Origin.EMPTY, StatusCode.OK, started=False),
    judge(Origin.SILENCE, StatusCode.CANCELLED, started=False),
]
calls = st.one_of(
    st.tuples(st.sampled_from(("sent", "given_up", "undecided")), st.just(())),
    st.tuples(st.sampled_from(("answered", "succeeded")), st.tuples(st.floats(0, 5))),
    st.tuples(st.sampled_from(("noticed", "convicted")), st.tuples(st.sampled_from(VERDICTS))),
    st.tuples(st.just("failed"), st.tuples(st.sampled_from(VERDICTS), st.floats(0, 5))),
    st.tuples(st.just("blank"), st.tuples(st.floats(0, 5))),
    st.tuples(st.just("stuck"), st.tuples(st.floats(90, 100))),
)


@given(st.lists(st.tuples(calls, st.integers(1, 3), st.booleans())))
def test_both_hear_the_same(seen: list[tuple[tuple[str, Any], int, bool]]) -> None:
    clock, lost_here, lost_there = Clock(), list[int](), list[int]()
    here, there = make(ToldReports, clock, lost_here), make(RequestReports, clock, lost_there)
    assert isinstance(here, ToldReports)
    here.tell = lambda report: take_report(there, report, clock.now())
    for (kind, args), worker, pinned in seen:
        more = {"pinned": pinned} if kind in ("failed", "blank") else {}
        getattr(here, kind)(worker, *args, **more)
        clock.time += 0.1
        assert here.errors == there.errors
        assert lost_here == lost_there
        for each in (1, 2, 3):
            out = here.outliers.out_until(each, clock.time)
            assert there.outliers.out_until(each, clock.time) == pytest.approx(out)


REFUSED = Report("sent", 1, verdict=VERDICTS[0])


@pytest.mark.parametrize(
    "report",
    [Report("forget", 1), Report("__init__", 1), Report("failed", 1), REFUSED],
)
def test_there_are_no_other_reports(report: Report) -> None:
    with pytest.raises(ValueError, match="no report"):
        take_report(make(RequestReports, Clock(), []), report, 0.0)
