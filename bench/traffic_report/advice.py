"""Which settings to change, with the figures that say so. Pure: figures in, sentences out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .outlook import Change, Estimate, Outlook, percent_change
from .routing import RoutingFigures

WORTH = 0.03
"""The least gain of a change that is worth telling, if all of its interval gains."""
LOST = 0.01
"""Of goodput, which a fleet may lose and count as as good."""
MUCH_CACHED = 0.05
"""Of prompt tokens, cached beyond what was, so that it is this that a larger cache gains by."""
BAD_RATIO = 1.5
FAR_OVERLAP, MOVED, FAILED, ENOUGH = 0.1, 0.2, 0.01, 0.9
LEAST_COMPARED = 30
SHORT_S = 10.0
"""Requests that came within less are named by their number, not as a busy time."""


@dataclass(frozen=True)
class Advice:
    """What to do, and why. `urgent`: requests fail or miss their objectives meanwhile."""

    what: str
    why: str
    urgent: bool = False


def advise(figures: RoutingFigures, outlook: Outlook | None) -> list[Advice]:
    """The most urgent first; empty if nothing speaks for a change."""
    found = [*_of_record(figures), *(() if outlook is None else _of_outlook(outlook))]
    return sorted(found, key=lambda advice: not advice.urgent)


def _of_record(figures: RoutingFigures) -> Iterator[Advice]:
    if figures.failed > FAILED * figures.requests:
        worst = next(each for each in figures.statuses if each not in ("ok", "cancelled"))
        yield Advice(
            "Find out why requests fail.",
            f"{figures.failed:,} of {figures.requests:,} requests failed, most often with {worst}."
            " The log has a line for each: request failed.",
            urgent=True,
        )
    p10, p50, p90 = figures.ratio_p10, figures.ratio_p50, figures.ratio_p90
    if p50 is not None and figures.predicted >= LEAST_COMPARED:
        assert p10 is not None and p90 is not None
        if not 1 / BAD_RATIO <= p50 <= BAD_RATIO:
            yield Advice(
                "Look at the engines: they do not do what is predicted.",
                f"Half of all first tokens came after {p50:.2g} times the predicted time or later"
                f" (10th to 90th percentile {p10:.2g} to {p90:.2g}). Engines that throttle, share"
                " their GPU or get requests from elsewhere look like that.",
            )
    if figures.overlap_over is not None and figures.overlap_over > FAR_OVERLAP:
        yield Advice(
            "Check that KV events arrive.",
            f"For {figures.overlap_over:.0%} of requests the engine had less in its cache than the"
            " router expected. Lost or late events, and engines that publish none, do that:"
            " dynamo-router doctor looks at it.",
        )
    if figures.moved_turns is not None and figures.moved_turns > MOVED:
        cached, infinite = figures.cached_share, figures.infinite_share
        if cached is not None and cached < ENOUGH * infinite:
            yield Advice(
                "Keep sessions at their worker: --router-session-affinity-ttl-secs 600.",
                f"{figures.moved_turns:.0%} of the later turns of sessions went to another worker"
                f" than the turn before, and {cached:.0%} of prompt tokens were cached where"
                f" {infinite:.0%} had been seen before.",
            )


def _of_outlook(outlook: Outlook) -> Iterator[Advice]:
    better = [each for each in outlook.of_kind("policy")[1:] if _gains(each)]
    if better:
        best = min(better, key=lambda each: each.e2e_ratio.mean + each.ttft_ratio.mean)
        yield Advice(f"Change the policy: {best.setting}.", f"{best.name}: {_gain_text(best)}.")
    more_memory = [each for each in outlook.of_kind("memory")[1:] if _gains(each)]
    if more_memory:
        least = _least_that_gains_most(more_memory)
        why = f"{least.name}: {_gain_text(least)}"
        now, then = outlook.base.cached_share.mean, least.cached_share.mean
        if then > now + MUCH_CACHED:
            why += f"; {then:.0%} of prompt tokens would be cached in place of {now:.0%}"
        else:
            why += (
                f"; it is answers under way that would have more room: {then:.0%} of prompt tokens"
                f" would be cached, and {now:.0%} are with the recorded cache"
            )
        yield Advice(
            f"Give the engines more cache: {least.setting}, on the GPU or in host memory.",
            f"{why}.",
        )
    yield from _of_workers(outlook)


def _of_workers(outlook: Outlook) -> Iterator[Advice]:
    base, others = outlook.base, outlook.of_kind("workers")[1:]
    ttft_ms, itl_ms = outlook.objectives
    goal = f"TTFT within {ttft_ms:,.0f} ms and ITL within {itl_ms:,.0f} ms"
    more = [each for each in others if _count(each) > outlook.workers]
    if base.goodput.mean < ENOUGH:
        gained = [each for each in more if each.goodput.mean > base.goodput.mean + WORTH]
        if gained:
            most = max(each.goodput.mean for each in gained)
            best = min((each for each in gained if each.goodput.mean >= most - WORTH), key=_count)
            yield Advice(
                f"Add engines: {best.setting} in place of {outlook.workers}.",
                f"{base.goodput.mean:.0%} of {_part(outlook)} have {goal}; with {best.name}"
                f" {best.goodput.mean:.0%} would.",
                urgent=True,
            )
        return
    fewer = [
        each
        for each in others
        if _count(each) < outlook.workers
        and _low(each.goodput) >= base.goodput.mean - LOST
        and each.e2e_ratio.mean < 1 + 2 * WORTH
    ]
    if fewer:
        least = min(fewer, key=_count)
        yield Advice(
            f"Fewer engines would do: {least.setting} in place of {outlook.workers}.",
            f"{least.goodput.mean:.0%} of {_part(outlook)} would have {goal}, as"
            f" {base.goodput.mean:.0%} have now; answers take {_longer(least.e2e_ratio.mean)}. Keep"
            " what you need when one fails.",
        )


def _gains(change: Change) -> bool:
    """TTFT or the whole answer gains surely, and the other one loses nothing to speak of."""
    pairs = (change.ttft_ratio, change.e2e_ratio), (change.e2e_ratio, change.ttft_ratio)
    return any(
        one.mean <= 1 - WORTH and _high(one) < 1 and other.mean < 1 + WORTH / 3
        for one, other in pairs
    )


def _least_that_gains_most(changes: list[Change]) -> Change:
    """The first of some, smallest first, that has four fifths of what any of them gains."""
    gains = [1 - min(each.ttft_ratio.mean, each.e2e_ratio.mean) for each in changes]
    return next(each for each, gain in zip(changes, gains, strict=True) if gain >= 0.8 * max(gains))


def _gain_text(change: Change) -> str:
    return (
        f"TTFT {_percent(change.ttft_ratio)}, whole answers {_percent(change.e2e_ratio)}"
        " against the recorded settings, both simulated"
    )


def _percent(ratio: Estimate) -> str:
    text = percent_change(ratio.mean)
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} ({percent_change(ratio.low)} to {percent_change(ratio.high)})"


def _count(change: Change) -> int:
    return int(change.setting.split()[0])


def _low(estimate: Estimate) -> float:
    return -math.inf if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return math.inf if estimate.high is None else estimate.high


def _part(outlook: Outlook) -> str:
    """The requests that were simulated: by their time, or those of a moment by their number."""
    seconds = outlook.span_s
    if seconds < SHORT_S:
        return f"the {outlook.requests:,} requests that were simulated"
    shown = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"requests in the busiest {shown}"


def _longer(ratio: float) -> str:
    percent = round((ratio - 1) * 100)
    return f"{abs(percent)}% {'longer' if percent > 0 else 'less time'}" if percent else "as long"
