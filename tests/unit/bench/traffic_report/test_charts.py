"""Charts: well-formed, within their frame, whatever they are given."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.bench.traffic_report.charts import (
    HEIGHT,
    WIDTH,
    Axis,
    Bar,
    Mark,
    Series,
    axis_of,
    bars,
    lines,
    points,
)

VALUES = st.floats(0, 1e12) | st.just(math.inf) | st.just(math.nan)


def places(chart: str) -> tuple[list[float], list[float]]:
    """All x and all y that something of the chart is at."""
    xs: list[float] = []
    ys: list[float] = []
    for each in ET.fromstring(chart).iter():
        for name, value in each.attrib.items():
            if name in ("x", "x1", "x2", "cx"):
                xs.append(float(value))
            elif name in ("y", "y1", "y2", "cy"):
                ys.append(float(value))
            elif name == "points":
                pairs = [pair.split(",") for pair in value.split()]
                xs += [float(x) for x, _ in pairs]
                ys += [float(y) for _, y in pairs]
    return xs, ys


@given(st.lists(VALUES, max_size=20), st.booleans())
def test_an_axis_has_ticks_within_it(values: Sequence[float], log: bool) -> None:
    axis = axis_of(values, log=log)
    ticks = axis.ticks()
    assert len(ticks) <= 12 and ticks == sorted(set(ticks))
    assert all(axis.low <= tick <= axis.high * 1.001 for tick in ticks)
    assert all(0 <= axis.place(tick) <= 1 for tick in ticks)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=300), st.booleans())
def test_all_of_a_chart_is_within_its_frame(
    found: Sequence[tuple[float, float]], log: bool
) -> None:
    x = axis_of((each for each, _ in found), log=log)
    y = axis_of(each for _, each in found)
    series = [Series("a", found), Series("b", found[:1], 2, dashed=True)]
    for chart in (
        lines("t", series, x, y, x_name="x", y_name="y", marks=[Mark(x.high, "m")]),
        points("t", series, x, y, x_name="x", y_name="y", diagonal=True),
    ):
        xs, ys = places(chart)
        assert all(0 <= each <= WIDTH for each in xs) and all(0 <= each <= HEIGHT for each in ys)


def test_names_are_escaped() -> None:
    name = '<b>"&'
    chart = lines(name, [Series(name, [(0, 1)]), Series("b", [])], Axis(0, 1), Axis(0, 1),
                  x_name=name, y_name=name, marks=[Mark(0.5, name)])  # fmt: skip
    assert "<b>" not in chart and ET.fromstring(chart).find("figcaption") is not None
    assert "<b>" not in bars(name, [Bar(name, 1.0)], show=str, name=name)


@pytest.mark.parametrize("log", [True, False])
def test_values_beyond_an_axis_stand_at_its_end(log: bool) -> None:
    axis = Axis(1, 100, log)
    assert [axis.place(value) for value in (0, 1, 100, 1e9)] == [0, 0, 1, 1]


def test_bars_have_whiskers_where_an_interval_is_known() -> None:
    chart = bars(
        "t", [Bar("a", 2.0, 1.0, 3.0, True), Bar("b", 1.0), Bar("c", None)], show=str, name="n"
    )
    assert chart.count('class="whisker"') == 3 and chart.count("<rect") == 2
    assert "not known" in chart
    xs, _ = places(chart)
    assert all(0 <= each <= WIDTH for each in xs)


def test_names_of_marks_that_are_near_each_other_do_not_lie_on_each_other() -> None:
    axis = axis_of([0.0, 100.0])
    marks = [Mark(80.0, "one engine"), Mark(82.0, "all engines")]
    chart = ET.fromstring(lines("t", [], axis, axis, x_name="x", y_name="y", marks=marks))
    rows = [
        each.get("y") for each in chart.iter() if (each.text or "").endswith(("engine", "engines"))
    ]
    assert len(rows) == len(set(rows)) == 2
