"""Arrivals ahead by quantiles, and more requests like those that were seen."""

import math
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest

from dynamo_router.bench.simulation import SampledRequest
from dynamo_router.planner import Observation, ObservedRequest
from dynamo_router.planner.arrival_bins import ArrivalBins
from dynamo_router.planner.forecast import ArrivalForecast, RequestBodies
from dynamo_router.planner.forecast.predictors import Holt, Kalman, LastValue, Seasonal
from dynamo_router.planner.forecast.steady import dispersion_of, steady_bins


def fed(forecast: ArrivalForecast, counts: list[float]) -> ArrivalForecast:
    for each in counts:
        forecast.update(each)
    return forecast


@pytest.mark.parametrize("predictor", [LastValue(), LastValue(4), Holt(), Kalman()])
def test_a_constant_series_goes_on(predictor: LastValue) -> None:
    assert predictor.predict(3).tolist() == [0, 0, 0]
    for _ in range(60):
        predictor.update(50.0)
    assert predictor.predict(3) == pytest.approx([50, 50, 50], rel=0.01)
    predictor.skip()
    assert predictor.predict(3) == pytest.approx([50, 50, 50], rel=0.01)


@pytest.mark.parametrize("predictor", [Holt(), Kalman()])
def test_a_slope_goes_on_upwards(predictor: Holt) -> None:
    for n in range(60):
        predictor.update(10.0 + 5 * n)
    ahead = predictor.predict(4)
    assert (np.diff(ahead) > 2).all()
    assert ahead[0] == pytest.approx(310, rel=0.05)


def test_no_prediction_is_below_zero() -> None:
    for predictor in (Holt(), Kalman()):
        for n in range(20):
            predictor.update(max(0.0, 100 - 10 * n))
        assert (predictor.predict(20) >= 0).all()


def test_yesterday_comes_again_as_much_busier_as_today_is() -> None:
    yesterday = [100.0 + 50 * math.sin(n / 4) for n in range(50)]
    seasonal = Seasonal(yesterday, 50)
    for each in yesterday[:20]:
        seasonal.update(2 * each)
    assert seasonal.predict(5) == pytest.approx([2 * each for each in yesterday[20:25]], rel=0.05)
    assert len(seasonal.predict(200)) == 200  # further than a period


def test_the_better_predictor_gets_the_weight() -> None:
    counts = [100 + 80 * math.sin(n / 6) for n in range(120)]
    forecast = fed(ArrivalForecast(15.0, 6, counts), counts[:80])
    weights = forecast.forecast().weights
    assert sum(weights.values()) == pytest.approx(1, abs=0.01)
    assert max(weights, key=lambda name: weights[name]) == "seasonal"
    assert forecast.forecast().mean == pytest.approx(counts[80:86], rel=0.15)


def test_quantiles_are_as_wide_as_forecasts_were_wrong() -> None:
    rng = np.random.default_rng(0)
    calm = fed(ArrivalForecast(15.0, 4), list(rng.poisson(100, 150).astype(float)))
    wild = fed(ArrivalForecast(15.0, 4), list(rng.uniform(20, 180, 150)))
    assert calm.quantile(0.9)[0] == pytest.approx(100 + 1.28 * 10, rel=0.12)
    assert wild.quantile(0.9)[0] > calm.quantile(0.9)[0] + 20
    assert (np.array([calm.quantile(q)[1] for q in (0.5, 0.7, 0.9, 0.99)])[1:] > 90).all()
    later = [float(n) for n in rng.poisson(100, 400)]
    covered = np.mean([each <= calm.quantile(0.9)[0] for each in later])
    assert 0.8 <= covered <= 0.99


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf])
def test_what_is_no_count_is_refused(count: float) -> None:
    with pytest.raises(ValueError, match="no count of arrivals"):
        ArrivalForecast(15.0, 2).update(count)


def test_bins_that_were_not_seen_are_no_zeros() -> None:
    forecast = fed(ArrivalForecast(15.0, 3), [60.0] * 30)
    forecast.skip(20)
    assert forecast.forecast().mean == pytest.approx([60, 60, 60], rel=0.05)
    forecast.skip(10**9)  # a clock that jumped by years is soon over


def observed(at: float, times: list[float] | None, window_s: float = 60.0) -> Observation:
    requests = None if times is None else [ObservedRequest(each, 10) for each in times]
    return Observation(at=at, requests=requests, window_s=window_s)


def test_arrivals_are_counted_once_by_bins() -> None:
    bins = ArrivalBins(10.0)
    assert bins.take(observed(30.0, [1.0, 2.0, 15.0, 29.0], 30.0)) == [2, 1, 1]
    assert bins.take(observed(35.0, [29.0, 33.0])) == []
    assert bins.take(observed(50.0, [29.0, 33.0, 45.0])) == [1, 1]


def test_a_clock_that_jumps_leaves_bins_unknown() -> None:
    bins = ArrivalBins(10.0)
    bins.take(observed(100.0, [], 0.0))
    assert bins.take(observed(300.0, [290.0])) == [None] * 14 + [0, 0, 0, 0, 0, 1]
    assert bins.trouble == "nothing is known of 140 s"
    assert bins.take(observed(250.0, [249.0], 10.0)) == [1]
    assert bins.trouble == "the clock went back by 50 s"
    assert bins.take(observed(270.0, None)) == [None, None]
    assert bins.trouble == "no data on requests"
    bins.take(observed(280.0, [275.0]))
    assert bins.trouble == ""


def session(number: int, turns: int, at: float) -> list[ObservedRequest]:
    """Turns that grow by a block of their own behind two blocks that all sessions begin with."""
    return [
        ObservedRequest(
            at + turn, 10 * (3 + turn), 5, (1, 2, *range(1000 * number, 1000 * number + turn + 1))
        )
        for turn in range(turns)
    ]


def test_copies_share_what_sessions_share_and_nothing_else() -> None:
    window = sorted(
        (each for n in range(1, 6) for each in session(n, 4, 10.0 * n)), key=lambda r: r.arrival_s
    )
    bodies = RequestBodies(window, 10)
    copies = bodies.draw(60, seed=3)  # three times the window
    assert [len(each.ids) for each in copies] == [-(-each.prompt_tokens // 10) for each in copies]
    assert all(each.ids[:2].tolist() == [1, 2] for each in copies)
    seen = {n for each in window for n in each.block_ids[2:]}
    own = [tuple(each.ids[2:].tolist()) for each in copies]
    assert not seen & {n for each in own for n in each}
    # A session's turns have one beginning within a copy, and copies have none in common.
    assert len({each[0] for each in own}) in (15, 16)  # one more: the first was cut in two
    assert bodies.draw(60, seed=3)[7].ids.tolist() == copies[7].ids.tolist()
    assert bodies.draw(60, seed=4)[7].ids.tolist() != copies[7].ids.tolist()


def found_in_cache(requests: list[SampledRequest]) -> list[int]:
    """Leading blocks of each that requests before it have."""
    seen, found = set[int](), list[int]()
    for each in requests:
        ids = each.ids.tolist()
        found.append(sum(1 for _ in takewhile(seen.__contains__, ids)))
        seen.update(ids)
    return found


def test_a_scenario_has_as_many_cached_blocks_as_engines_reported() -> None:
    """Prompts that look new are simulated as warm as engines found them."""
    alone = [ObservedRequest(float(n), 100, 5, tuple(range(50 * n, 50 * n + 10))) for n in range(9)]
    warm = [replace(each, cached_tokens=58) for each in alone]
    assert sum(found_in_cache(RequestBodies(alone, 10).draw(60, seed=3))) == 0
    copies = RequestBodies(warm, 10).draw(60, seed=3)
    assert found_in_cache(copies) == [0, *[6] * 59]
    assert [len(each.ids) for each in copies] == [10] * 60
    assert found_in_cache(RequestBodies(warm, 10).as_seen(0)) == [0, *[6] * 8]
    whole = [replace(each, cached_tokens=100) for each in alone]
    assert max(found_in_cache(RequestBodies(whole, 10).draw(60, seed=3))) == 9  # one is computed


def test_what_a_scenario_brings_by_itself_is_not_made_warm_again() -> None:
    turns = [
        replace(each, cached_tokens=max(0, each.prompt_tokens - 10) if turn else 20)
        for number in range(1, 6)
        for turn, each in enumerate(session(number, 4, 10.0 * number))
    ]
    bodies, without = (
        RequestBodies(turns, 10),
        RequestBodies([replace(each, cached_tokens=None) for each in turns], 10),
    )
    measured = sum(each.cached_tokens or 0 for each in turns) // 10
    by_itself = sum(found_in_cache(without.as_seen(0)))
    assert measured - 2 <= by_itself <= measured
    assert sum(found_in_cache(bodies.as_seen(0))) - by_itself <= 2
    half = [replace(each, cached_tokens=0) for each in turns]
    asked, kept = RequestBodies(half, 10).as_seen(0), without.as_seen(0)
    assert [each.ids.tolist() for each in asked] == [each.ids.tolist() for each in kept]


def test_a_prompt_goes_on_with_what_its_engine_had_in_cache() -> None:
    """What was cached is warm on the engine that served its session, and requests that go on with
    each other are one session: a burst of sessions is no jump of the load."""
    engines, sessions = 2, 6
    turns = [
        replace(
            each,
            prompt_tokens=10 * len(blocks),
            block_ids=blocks,
            cached_tokens=10 * (len(blocks) - 2) if turn else 0,
            worker_id=number % engines,
        )
        for number in range(1, sessions + 1)
        for turn, each in enumerate(session(number, 4, 5.0 * number))
        if (blocks := tuple(range(1000 * number, 1000 * number + 20 * number + 2 * turn)))
    ]
    hidden = [
        replace(each, block_ids=tuple(range(place << 20, (place << 20) + len(each.block_ids))))
        for place, each in enumerate(turns, 1)
    ]
    known, guessed = RequestBodies(turns, 10), RequestBodies(hidden, 10)
    assert found_in_cache(guessed.as_seen(0)) == found_in_cache(known.as_seen(0))
    assert guessed.dispersion == known.dispersion == 4.0
    ids = [set(each.ids.tolist()) for each in guessed.as_seen(0)]
    of_sessions = [ids[4 * n] | ids[4 * n + 3] for n in range(sessions)]
    assert sum(map(len, of_sessions)) == len(set[int]().union(*of_sessions))
    # Another engine's prompt is in no cache that was read: its length alone says nothing.
    elsewhere = [replace(each, worker_id=place) for place, each in enumerate(hidden)]
    assert RequestBodies(elsewhere, 10).dispersion == 1.0
    unknown = [replace(each, worker_id=None) for each in hidden]
    assert RequestBodies(unknown, 10).dispersion == 1.0


def test_a_prompt_whose_beginning_is_known_goes_on_with_no_other() -> None:
    first, later = (1, 2, 3, 4, 5), (1, 2, 30, 31, 32, 33)
    asked = [
        ObservedRequest(float(n), 10 * len(ids), 5, ids, cached_tokens=cached, worker_id=1)
        for n, (ids, cached) in enumerate([((8, 9, 10, 11, 12), 0), (first, 0), (later, 50)])
    ]
    kept = [each.ids.tolist() for each in RequestBodies(asked, 10).as_seen(0)]
    assert kept == [[8, 9, 10, 11, 12], [*first], [*first, 33]]
    # What follows a renamed prompt follows it still.
    asked.append(ObservedRequest(4.0, 70, 5, (*later, 34), cached_tokens=60, worker_id=1))
    assert RequestBodies(asked, 10).as_seen(0)[3].ids.tolist() == [*first, 33, 34]


def test_copies_of_small_ids_have_none_in_common() -> None:
    """Ids are mixed: by exclusive or alone, 5 ^ 1 is 6 ^ 2."""
    window = [ObservedRequest(float(n), 40, 5, tuple(range(4 * n, 4 * n + 4))) for n in range(16)]
    ids = [n for each in RequestBodies(window, 10).draw(64, seed=3) for n in each.ids.tolist()]
    assert len(set(ids)) == len(ids) == 256


def test_requests_that_run_get_the_output_of_others() -> None:
    window = [ObservedRequest(0.0, 20, 7, (1, 2)), ObservedRequest(1.0, 20, None, (1, 3))]
    assert RequestBodies(window, 10).outputs == [7, 7]
    unknown = [ObservedRequest(0.0, 25), ObservedRequest(1.0, 25)]  # no ids: nothing is shared
    first, second = RequestBodies(unknown, 10).as_seen(0)
    assert len(first.ids) == 3 and not set(first.ids.tolist()) & set(second.ids.tolist())
    with pytest.raises(ValueError, match="no requests"):
        RequestBodies([], 10)


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_ids_that_are_none_share_nothing(number: int) -> None:
    """Such a record ends no plan of its window."""
    requests = [ObservedRequest(float(n), 128, 10, (number, n)) for n in range(3)]
    bodies = RequestBodies(requests, 64)
    assert len({each.ids.tobytes() for each in bodies.as_seen(0)}) == 3


@pytest.mark.parametrize("times", [2, 10])
@pytest.mark.parametrize("since", [0, 8, 16])
def test_a_burst_of_a_minute_makes_no_busier_day(times: int, since: int) -> None:
    """Neither while it lasts nor behind it."""
    seasonal = Seasonal([30.0] * 240, 240)
    for count in [*[30.0] * 20, *[30.0 * times] * 4, *[30.0] * since]:
        seasonal.update(count)
    assert seasonal.predict(20).max() < 1.25 * 30


def test_a_day_is_busier_once_it_was_for_minutes() -> None:
    seasonal = Seasonal([30.0] * 240, 240)
    for count in [*[30.0] * 20, *[60.0] * 4]:
        seasonal.update(count)
    for _ in range(20):
        seasonal.update(60.0)
    assert seasonal.predict(20).min() > 1.8 * 30, "six minutes are no burst"


def test_a_rise_of_yesterday_is_foreseen_as_long_as_today_is_alike() -> None:
    yesterday = [10.0] * 20 + [80.0] * 20
    alike, other = (ArrivalForecast(15.0, 8, yesterday) for _ in range(2))
    for _ in range(16):
        alike.update(10.0)
        other.update(40.0)
    assert max(alike.quantile(0.5)[4:]) >= 60
    assert max(other.quantile(0.5)) < 50, "a day that goes on otherwise is not believed"
    without = ArrivalForecast(15.0, 8)
    for _ in range(16):
        without.update(10.0)
    assert max(without.quantile(0.5)) < 20


def test_chance_in_the_first_bins_takes_no_trust_from_yesterday() -> None:
    """A minute of a rising morning: before, the season's loss had to be the least within a
    quarter, which four bins cannot show, and the rise was seen once it was there."""
    yesterday = [26.0, 24.0, 28.0, 27.0, *(30.0 + 6 * n for n in range(16)), *[120.0] * 20]
    today = fed(ArrivalForecast(15.0, 14, yesterday), [19.0, 18.0, 20.0, 22.0])
    assert today.quantile(0.5)[12] > 60
    assert fed(ArrivalForecast(15.0, 14), [19.0, 18.0, 20.0, 22.0]).quantile(0.5)[12] < 40


def test_counts_are_steady_as_long_as_chance_explains_them() -> None:
    rng = np.random.default_rng(5)
    calm, busy = rng.poisson(22, 40).tolist(), rng.poisson(66, 6).tolist()
    assert steady_bins(calm, 1.0) == 40
    assert steady_bins([*calm, *busy], 1.0) == 6
    slope = [20.0 + 2 * n for n in range(40)]
    assert steady_bins(slope, 1.0) < 20
    assert steady_bins([], 1.0) == 0


def test_sessions_of_many_requests_make_counts_that_vary_by_more() -> None:
    rng = np.random.default_rng(5)
    bursts = (6 * rng.poisson(4, 40)).tolist()
    assert steady_bins(bursts, 1.0) < 40
    assert steady_bins(bursts, 6.0) == 40
    requests = [ObservedRequest(float(n), 64, 10, (n,), session=f"s{n // 3}") for n in range(30)]
    assert RequestBodies(requests, 64).dispersion == pytest.approx(3.0)


def test_a_load_is_not_steady_where_the_season_says_that_it_ends() -> None:
    night, day = [20.0] * 40, [60.0] * 40
    forecast = fed(ArrivalForecast(15.0, 8, [*night, *day]), night[:20])
    assert forecast.steady_s(1.0) == 300.0
    fed(forecast, night[:16])  # four bins before the day
    assert forecast.steady_s(1.0) == 0.0
    forecast.skip()
    assert forecast.steady_s(1.0) == 0.0


def test_an_hour_of_one_rate_is_the_forecast_whatever_came_last() -> None:
    rng = np.random.default_rng(5)
    hour = (4 * rng.poisson(5, 240)).astype(float).tolist()
    burst = [34.0] * 4
    forecast = fed(ArrivalForecast(15.0, 10, hour), burst)
    path = forecast.of_one_rate(0.5, 4.0)
    assert path is not None and path == pytest.approx(20.0, rel=0.06)
    assert forecast.quantile(0.5, 4.0)[-5:].sum() > 1.2 * path[-5:].sum()
    careful = forecast.of_one_rate(0.9, 4.0)
    assert careful is not None
    assert careful[-5:].sum() - path[-5:].sum() == pytest.approx(1.28 * (4 * 100) ** 0.5, rel=0.1)
    assert fed(ArrivalForecast(15.0, 10), hour[:200]).of_one_rate(0.5, 4.0) is None  # no hour yet
    assert fed(ArrivalForecast(15.0, 10, hour), [60.0] * 8).of_one_rate(0.5, 4.0) is None
    forecast.skip()
    assert forecast.of_one_rate(0.5, 4.0) is None


def test_sessions_that_nothing_tells_make_counts_that_vary_as_they_were_seen_to() -> None:
    rng = np.random.default_rng(7)
    sessions = np.repeat(rng.poisson(1.5, 60), 4) * 3 + rng.poisson(6, 240)  # a minute each
    hour = sessions.astype(float).tolist()
    assert steady_bins(hour, 1.0) < 240
    assert dispersion_of(hour) > 2
    assert fed(ArrivalForecast(15.0, 10, hour), hour[:4]).of_one_rate(0.5, 1.0) is not None
    assert dispersion_of(rng.poisson(20, 240).tolist()) < 2
    assert dispersion_of([20.0] * 100 + [400.0] * 4 + [20.0] * 100) == 1.0
    assert dispersion_of([0.0] * 40) == dispersion_of([5.0]) == 1.0


def test_a_burst_of_sessions_ends_no_hour_of_one_rate() -> None:
    """The season's own counts say how the hour goes on, not those times the last minute's rate."""
    hour = (4.0 * np.random.default_rng(5).poisson(5, 240)).tolist()
    forecast = fed(ArrivalForecast(15.0, 14, hour), hour[:60])
    assert forecast.is_settled(4.0)
    fed(forecast, [44.0] * 4)
    assert forecast.is_settled(4.0)
    fed(forecast, [60.0] * 8)
    assert not forecast.is_settled(4.0)


def test_sessions_of_some_minutes_make_counts_vary_by_more_than_a_minute_shows() -> None:
    rng = np.random.default_rng(11)
    begun = rng.poisson(0.9, 280)  # a session asks once a bin, for three minutes
    counts = np.convolve(begun, np.ones(12), "valid")[:240]
    assert dispersion_of(counts.tolist()) > 2.5


def test_an_hour_of_one_rate_says_nothing_where_the_season_ends_it() -> None:
    night, day = [20.0] * 400, [60.0] * 200
    forecast = fed(ArrivalForecast(15.0, 10, [*night, *day]), night[:390])
    assert forecast.of_one_rate(0.5, 1.0) is not None
    fed(forecast, night[:6])  # four bins before the day
    assert forecast.of_one_rate(0.5, 1.0) is None


def test_a_quantile_is_that_of_the_total_of_bins_that_miss_in_both_directions() -> None:
    """The sum of the bins' quantiles is reached by one total in hundreds."""
    counts = list(np.random.default_rng(3).poisson(20, 500).astype(float))
    forecast, below, planned = fed(ArrivalForecast(15.0, 10), counts[:190]), 0, 0.0
    for place in range(190, 490):
        total = forecast.quantile(0.9)[5:].sum()
        below, planned = below + (sum(counts[place + 5 : place + 10]) <= total), planned + total
        forecast.update(counts[place])
    assert 0.8 <= below / 300 <= 0.97
    assert planned / 300 < 1.35 * 5 * 20


def test_the_end_of_a_silence_says_nothing_of_a_busy_hour() -> None:
    """What a forecast of none has missed by does not count at a load many times as high."""
    rng = np.random.default_rng(3)
    busy = list(rng.poisson(36, 60).astype(float))
    yesterday = [*busy, *[0.0] * 80, *busy]
    today = fed(ArrivalForecast(15.0, 14, yesterday), busy[:16])
    assert today.quantile(0.9).max() < 2 * 36


def test_a_day_begins_with_what_was_missed_by_on_the_day_before() -> None:
    rng = np.random.default_rng(3)
    calm, wild = (list(rng.uniform(40 - by, 40 + by, 160)) for by in (2, 38))
    first = [fed(ArrivalForecast(15.0, 14, each), [40.0]).quantile(0.9) for each in (calm, wild)]
    assert first[0].sum() < first[1].sum()
    assert first[0][0] == pytest.approx(40, rel=0.2)


def test_arrivals_that_jump_are_believed_after_a_bin() -> None:
    """A jump is planned for at once, not when smooth predictors have come to it."""
    rng = np.random.default_rng(3)
    calm = list(rng.poisson(8, 40).astype(float))
    forecast = fed(ArrivalForecast(15.0, 10), calm)
    assert forecast.quantile(0.5, 3.0).max() < 16
    forecast.update(40.0)
    assert forecast.quantile(0.5, 3.0).min() >= 40
    forecast.update(8.0)  # it was none
    assert forecast.quantile(0.5, 3.0).max() < 24
