"""What a phase's requests come to, what a ratio is of, and which peer is the worst."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.bench.workbench.hostile.cells import (
    PHASES,
    Cell,
    Figures,
    Phase,
    PhaseName,
    Sample,
    figures_of,
    worst_first,
)


def sample(started: float, ms: float = 1.0, gap_ms: float = 0.0, code: str = "OK") -> Sample:
    return Sample(started=started, ms=ms, gap_ms=gap_ms, code=code)


def cell(
    quiet: float | None, hostile: float | None, control: float | None, failed: int = 0
) -> Cell:
    figures = {
        name: Figures(100, failed if name == "hostile" else 0, 1.0, p99, 0.0)
        for name, p99 in zip(PHASES, (quiet, hostile, control), strict=True)
    }
    return Cell("peer", figures, figures, (1.0, 2.0, 1.0), 0.1, 0.1)


def test_a_request_counts_in_the_phase_that_it_was_sent_in() -> None:
    phases = [Phase("quiet", 0, 10), Phase("hostile", 10, 20), Phase("quiet", 30, 40)]
    samples = [sample(0, 1), sample(9, 3), sample(10, 50, 7), sample(25, 99), sample(35, 2, 4)]
    quiet = figures_of(samples, phases, "quiet")
    assert (quiet.requests, quiet.failed, quiet.p50_ms, quiet.longest_gap_ms) == (3, 0, 2, 4)
    hostile = figures_of(samples, phases, "hostile")
    assert hostile == Figures(1, 0, 50, 50, 7)
    assert figures_of(samples, phases, "control") == Figures(0, 0, None, None, None)


def test_what_failed_counts_and_so_does_the_time_until_it_did() -> None:
    samples = [sample(1, 5000, code="DEADLINE_EXCEEDED"), sample(2, 1)]
    figures = figures_of(samples, [Phase("hostile", 0, 10)], "hostile")
    assert (figures.requests, figures.failed) == (2, 1)
    assert figures.p99_ms is not None and figures.p99_ms > 4000


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 1e4)), max_size=50),
    st.lists(st.floats(0, 100), min_size=2, max_size=9, unique=True).map(sorted),
)
def test_phases_share_the_requests_out(
    made: list[tuple[float, float]], borders: list[float]
) -> None:
    samples = [sample(*each) for each in made]
    spans = zip(borders, borders[1:], strict=False)
    phases = [Phase(PHASES[n % 3], *span) for n, span in enumerate(spans)]
    figures = [figures_of(samples, phases, name) for name in PHASES]
    within = [s for s in samples if borders[0] <= s.started < borders[-1]]
    assert sum(each.requests for each in figures) == len(within)
    for each in figures:
        if each.requests:
            assert each.p50_ms is not None and each.p99_ms is not None
            assert each.p50_ms <= each.p99_ms <= max(s.ms for s in within)


@pytest.mark.parametrize(
    ("p99s", "ratio", "net"),
    [
        ((10, 20, 10), 2, 2),
        ((10, 40, 20), 4, 2),  # half of it is the machine's
        ((10, 40, 5), 4, 4),
        ((10, 5, 10), 0.5, 0.5),
        ((10, None, 10), math.inf, math.inf),  # nobody was served
        ((10, 40, None), 4, 4),
    ],
)
def test_the_net_ratio_leaves_out_what_the_peers_cpu_costs(
    p99s: tuple[float | None, float | None, float | None], ratio: float, net: float
) -> None:
    assert (cell(*p99s).ratio, cell(*p99s).net_ratio) == (ratio, net)


def test_the_goal_is_of_latency_and_of_failures() -> None:
    assert cell(10, 20, 10).meets_goal and cell(10, 20, 10, failed=1).meets_goal
    assert not cell(10, 21, 10).meets_goal
    assert not cell(10, 10, 10, failed=2).meets_goal
    assert not cell(10, None, 10).meets_goal


def test_the_worst_comes_first_and_failures_before_delays() -> None:
    fine, slow, fails, gone = cell(1, 1, 1), cell(1, 9, 1), cell(1, 1, 1, 50), cell(1, None, 1)
    assert worst_first([fine, slow, fails, gone]) == [fails, gone, slow, fine]


def test_json_has_no_infinity_and_every_phase() -> None:
    content = cell(10, None, 10).to_dict()
    assert content["ratio"] is None and content["net_ratio"] is None
    names: tuple[PhaseName, ...] = PHASES
    assert set(content["phases"]) == set(names) and content["meets_goal"] is False
