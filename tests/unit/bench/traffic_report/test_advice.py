"""Advice: given where figures speak for it, with them, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from dynamo_router.bench.results import Summary
from dynamo_router.bench.traffic_report.advice import advise
from dynamo_router.bench.traffic_report.outlook import Change, Estimate, Outlook
from dynamo_router.bench.traffic_report.routing import RoutingFigures

FIGURES = RoutingFigures(
    requests=1000, statuses={"ok": 1000}, cached_share=0.5, pooled_share=0.55, infinite_share=0.6,
    avoidable_prefill=0.1, ttft_ms=Summary(), itl_ms=Summary(), e2e_ms=Summary(),
    queue_ms=Summary(), goodput=1.0, compared=1000, sooner=0.1, sooner_ms=9.0, predicted=1000,
    ratio_p10=0.9, ratio_p50=1.0, ratio_p90=1.2, overlap_exact=1.0, overlap_over=0.0,
    overlap_under=0.0, retried=0, moved_turns=0.0, named_sessions=10,
)  # fmt: skip


def change(
    name: str,
    kind: str,
    setting: str,
    *,
    ttft: tuple[float, float, float] = (1.0, 0.9, 1.1),
    e2e: tuple[float, float, float] = (1.0, 0.99, 1.01),
    goodput: tuple[float, float, float] = (0.99, 0.985, 0.995),
) -> Change:
    ms, share = Estimate(100.0, 90.0, 110.0), Estimate(0.5, 0.49, 0.51)
    figures = (ms, ms, ms, share, Estimate(*goodput), Estimate(*ttft), Estimate(*e2e))
    return Change(name, kind, setting, *figures)


def outlook(*changes: Change, **more: Any) -> Outlook:
    base = change("as recorded", "base", "", **more)
    empty: dict[str, float | None] = {}
    return Outlook(
        500, 0.0, 60.0, 4, 1000, 1.0, "kv", (500.0, 25.0), empty, empty, 3, [base, *changes]
    )


def whats(*found: Any) -> list[str]:
    return [each.what for each in advise(*found)]


def test_nothing_is_advised_where_nothing_speaks_for_it() -> None:
    calm = outlook(
        change("round-robin", "policy", "--mode round-robin", ttft=(1.3, 1.2, 1.4)),
        change("5 workers", "workers", "5 workers", ttft=(0.98, 0.95, 1.01)),
        change("2 x the cache", "memory", "caches of 2", ttft=(0.95, 0.8, 1.1)),
    )
    assert advise(FIGURES, calm) == advise(FIGURES, None) == []


@pytest.mark.parametrize(
    ("figures", "what"),
    [
        ({"statuses": {"ok": 900, "unavailable": 100}}, "Find out why requests fail."),
        ({"ratio_p50": 2.0}, "Look at the engines: they do not do what is predicted."),
        ({"ratio_p50": 0.3}, "Look at the engines: they do not do what is predicted."),
        ({"overlap_over": 0.3}, "Check that KV events arrive."),
        (
            {"moved_turns": 0.5},
            "Keep sessions at their worker: --router-session-affinity-ttl-secs 600.",
        ),
    ],
)
def test_what_the_record_alone_says(figures: dict[str, Any], what: str) -> None:
    assert whats(replace(FIGURES, **figures), None) == [what]


def test_too_few_predictions_say_nothing() -> None:
    assert not whats(replace(FIGURES, ratio_p50=9.0, predicted=5), None)


def test_sessions_that_find_all_there_is_may_move() -> None:
    assert not whats(replace(FIGURES, moved_turns=0.9, cached_share=0.59), None)


@pytest.mark.parametrize(
    ("cached", "word"), [(0.51, "answers under way"), (0.7, "in place of 50%")]
)
def test_a_larger_cache_is_said_to_gain_by_what_it_gains_by(cached: float, word: str) -> None:
    larger = change("2 x", "memory", "caches of 2", ttft=(0.82, 0.8, 0.84))
    larger = replace(larger, cached_share=Estimate(cached, cached, cached))
    (found,) = advise(FIGURES, outlook(larger))
    assert word in found.why and f"{cached:.0%} of prompt tokens would be cached" in found.why


def test_the_best_policy_that_surely_gains_is_named_with_its_interval() -> None:
    found = advise(
        FIGURES,
        outlook(
            change("a", "policy", "--policy a", ttft=(0.7, 0.5, 1.2)),  # perhaps
            change("b", "policy", "--policy b", ttft=(0.9, 0.85, 0.95)),
            change("c", "policy", "--policy c", ttft=(0.8, 0.75, 0.85)),
            change("d", "policy", "--policy d", ttft=(0.5, 0.4, 0.6), e2e=(1.2, 1.1, 1.3)),
        ),
    )
    assert [each.what for each in found] == ["Change the policy: --policy c."]
    assert "TTFT -20% (-25% to -15%)" in found[0].why


def test_the_least_cache_that_gains_most_of_it_is_named() -> None:
    found = whats(
        FIGURES,
        outlook(
            change("2 x", "memory", "caches of 2", ttft=(0.82, 0.8, 0.84)),
            change("4 x", "memory", "caches of 4", ttft=(0.80, 0.79, 0.81)),
        ),
    )
    assert found == ["Give the engines more cache: caches of 2, on the GPU or in host memory."]


def test_more_engines_where_objectives_are_missed() -> None:
    found = advise(
        FIGURES,
        outlook(
            change("3 workers", "workers", "3 workers", goodput=(0.5, 0.4, 0.6)),
            change("5 workers", "workers", "5 workers", goodput=(0.92, 0.9, 0.94)),
            change("6 workers", "workers", "6 workers", goodput=(0.93, 0.9, 0.94)),
            goodput=(0.7, 0.6, 0.8),
        ),
    )
    assert [(each.what, each.urgent) for each in found] == [
        ("Add engines: 5 workers in place of 4.", True)
    ]


def test_fewer_engines_only_where_nothing_is_lost() -> None:
    kept = change("3 workers", "workers", "3 workers", e2e=(1.02, 1.0, 1.04))
    assert whats(FIGURES, outlook(kept)) == ["Fewer engines would do: 3 workers in place of 4."]
    slower = change("3 workers", "workers", "3 workers", e2e=(1.2, 1.1, 1.3))
    lossy = change("3 workers", "workers", "3 workers", goodput=(0.99, 0.9, 1.0))
    assert not whats(FIGURES, outlook(slower)) and not whats(FIGURES, outlook(lossy))


def test_what_is_urgent_comes_first() -> None:
    figures = replace(FIGURES, overlap_over=0.5, statuses={"ok": 1, "internal": 999})
    assert whats(figures, None)[0] == "Find out why requests fail."


def test_requests_of_a_moment_are_named_by_their_number_and_equal_times_are_so() -> None:
    fewer = change("3 workers", "workers", "3 workers", e2e=(1.001, 0.99, 1.01))
    shown = replace(outlook(fewer), requests=6, span_s=0.2)
    (found,) = advise(FIGURES, shown)
    assert "99% of the 6 requests that were simulated would have" in found.why
    assert "answers take as long." in found.why and "0 s" not in found.why
    more = change("5 workers", "workers", "5 workers", goodput=(0.95, 0.9, 1.0))
    late = outlook(more, goodput=(0.5, 0.4, 0.6))
    (found,) = advise(FIGURES, replace(late, requests=6, span_s=0.2))
    assert found.why.startswith("50% of the 6 requests that were simulated have")
    (found,) = advise(FIGURES, replace(late, span_s=60.0))
    assert found.why.startswith("50% of requests in the busiest 60 s have")


@pytest.mark.parametrize(("ratio", "words"), [(1.05, "5% longer"), (0.95, "5% less time")])
def test_it_says_how_much_longer_answers_take(ratio: float, words: str) -> None:
    fewer = change("3 workers", "workers", "3 workers", e2e=(ratio, 0.9, 1.1))
    (found,) = advise(FIGURES, outlook(fewer))
    assert f"answers take {words}." in found.why
