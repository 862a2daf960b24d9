"""Measured step times: interpolated and extrapolated, and what is no profile."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.engine import line, surface
from support.places import ROOT

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.core._timing import StepTiming
from dynamo_router.engines.mocker.timing import load_timing

PROFILE = {
    "prefill_isl": [100.0, 200.0, 400.0],
    "prefill_ttft_ms": [10.0, 12.0, 30.0],
    "decode_active_kv_tokens": [1000.0, 3000.0],
    "decode_context_length": [10.0, 20.0, 50.0],
    "decode_itl_ms": [[5.0, 6.0, 7.0], [9.0, 11.0, 15.0]],
}


def saved(folder: Path, **changed: object) -> str:
    """The profile with some arrays changed, or left out where None, as a file."""
    arrays = {name: value for name, value in {**PROFILE, **changed}.items() if value is not None}
    path = folder / "profile.npz"
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return str(path)


def test_measured_points_are_met_and_between_them_lie_lines(tmp_path):
    timing = load_timing(saved(tmp_path), 10**6, 1.0)
    assert [timing.prefill_ms(n) for n in (100, 200, 400)] == [10, 12, 30]
    assert timing.prefill_ms(150) == 11 and timing.prefill_ms(300) == 21
    assert timing.prefill_ms(0) == 0, "no prompt takes no time"
    assert timing.prefill_ms(50) == 9 and timing.prefill_ms(500) == 39
    # 100 requests of 10 tokens, 60 of 50: the corners.
    assert timing.decode_ms(1000, 100) == 5 and timing.decode_ms(3000, 60) == 15
    assert timing.decode_ms(2000, 200) == 7
    assert timing.decode_ms(1000, 40) == pytest.approx(6 + 5 / 30)
    assert timing.decode_ms(5000, 500) == 13
    assert timing.decode_ms(0, 0) == 0
    twice = load_timing(saved(tmp_path), 10**6, 2.0)
    assert twice.decode_ms(1000, 100) == 2.5 and twice.prefill_ms(100) == 10


def test_times_beyond_the_points_stay_above_zero(tmp_path):
    path = saved(tmp_path, prefill_ttft_ms=[1.0, 50.0, 90.0])
    assert load_timing(path, 10**6, 1.0).prefill_ms(1) == pytest.approx(0.001)


axes = st.lists(st.integers(0, 10_000), min_size=2, max_size=6, unique=True).map(sorted)
times = st.floats(0.5, 500)


@given(data=st.data(), xs=axes, ys=axes, isl=axes)
def test_the_native_surface_is_the_plain_one(data, xs, ys, isl):
    ttft = data.draw(st.lists(times, min_size=len(isl), max_size=len(isl)))
    row = st.lists(times, min_size=len(ys), max_size=len(ys))
    rows = data.draw(st.lists(row, min_size=len(xs), max_size=len(xs)))
    arrays = tuple(np.array(each, np.float64) for each in (isl, ttft, xs, ys, rows))
    timing = StepTiming(1e6, 1.0, arrays)
    tokens, requests = data.draw(st.integers(1, 20_000)), data.draw(st.integers(1, 300))
    assert timing.prefill_ms(tokens) == max(0.001, line(isl, ttft, tokens))
    wanted = surface(xs, ys, rows, tokens, tokens / requests)
    assert timing.decode_ms(tokens, requests) == pytest.approx(max(0.001, wanted))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"prefill_isl": None}, "array prefill_isl is missing"),
        ({"decode_itl_ms": None}, "array decode_itl_ms is missing"),
        ({"prefill_ttft_ms": ["a", "b", "c"]}, "prefill_ttft_ms has no numbers"),
        ({"prefill_ttft_ms": [1.0, np.nan, 2.0]}, "prefill_ttft_ms has a value that is not finite"),
        ({"decode_itl_ms": [[1, 2, np.inf], [1, 2, 3]]}, "decode_itl_ms has a value that is not"),
        ({"prefill_isl": [[1.0, 2.0]]}, "prefill_isl has 2 dimensions, not 1"),
        ({"prefill_isl": [1.0], "prefill_ttft_ms": [1.0]}, "prefill_isl needs 2 points, it has 1"),
        ({"decode_context_length": [20, 10, 50]}, "decode_context_length must grow from point"),
        ({"decode_active_kv_tokens": [7, 7]}, "decode_active_kv_tokens must grow from point"),
        ({"prefill_isl": [-1, 2, 3]}, "prefill_isl must grow from point to point, from 0 or more"),
        ({"prefill_ttft_ms": [1, 2]}, r"prefill_ttft_ms has the shape \(2,\), not \(3,\)"),
        ({"decode_itl_ms": [[1, 2], [3, 4], [5, 6]]}, r"the shape \(3, 2\), not \(2, 3\)"),
        ({"decode_itl_ms": [[1, 2, 0], [3, 4, 5]]}, "decode_itl_ms has a time that is not above 0"),
        ({"prefill_ttft_ms": [1, -2, 3]}, "prefill_ttft_ms has a time that is not above 0"),
    ],
)
def test_a_profile_that_is_none_is_refused_with_a_reason(tmp_path, changed, text):
    with pytest.raises(ConfigError, match=f"^planner_profile_data: .*{text}") as caught:
        EngineConfig(planner_profile_data=saved(tmp_path, **changed))
    assert caught.value.key == "planner_profile_data"


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="planner_profile_data: cannot read .*not an NPZ file"):
        EngineConfig(planner_profile_data=str(path))
    with pytest.raises(ConfigError, match="cannot read .*No such file"):
        EngineConfig(planner_profile_data=str(tmp_path / "none.npz"))
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(ConfigError, match="not an NPZ file"):
        EngineConfig(planner_profile_data=str(tmp_path / "one.npy"))


def test_the_arrays_that_the_kernel_takes_are_checked_once_more():
    arrays = [np.array(PROFILE[name], np.float64) for name in PROFILE]
    for place, wrong in ((0, arrays[0][:1]), (1, arrays[1][:2]), (4, arrays[4][:, :2])):
        with pytest.raises(ValueError):
            StepTiming(1.0, 1.0, tuple(wrong if i == place else a for i, a in enumerate(arrays)))


def test_the_example_is_what_its_script_makes_and_can_be_used():
    examples = ROOT / "examples"
    made = runpy.run_path(str(examples / "make_step_times.py"))["step_times"]()
    with np.load(examples / "step_times.npz") as shipped:
        assert sorted(shipped.files) == sorted(made)
        for name, values in made.items():
            assert np.array_equal(shipped[name], values)
    timing = EngineConfig(planner_profile_data=str(examples / "step_times.npz")).timing
    assert 9 < timing.decode_ms(8 * 1024, 8) < 11 < timing.prefill_ms(1024) < 60
