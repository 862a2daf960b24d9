"""How long a step takes: polynomials, or measured points from a profiler's sweeps.

The polynomials were fitted to a GPU, the one for decoding over the share of the cache in use. The
share is capped at 1, where the parabola has all but reached its peak: past the peak it falls, and
would make an overfull engine decode in no time.

A profile is an NPZ file of five arrays: `prefill_isl` and `prefill_ttft_ms` of one length;
`decode_active_kv_tokens`, `decode_context_length`, and `decode_itl_ms` with a row for each of the
former and a column for each of the latter. Between points times are interpolated, linearly and
bilinearly, and beyond them extrapolated along the last pair. A step with a prefill of n tokens
takes what a prompt of n tokens was measured to take. (`decode_itl` is read too.)
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...process.settings import bad_setting
from .core import StepTiming

KEY = "planner_profile_data"
_AXES = ("prefill_isl", "decode_active_kv_tokens", "decode_context_length")
_ITL_NAMES = ("decode_itl_ms", "decode_itl")

__all__ = ["StepTiming", "load_timing"]


def load_timing(
    profile: str | None,
    total_tokens: int,
    decode_speedup: float,
    attention_us_per_ktoken2: float = 0.0,
) -> StepTiming:
    """The polynomials over a cache of `total_tokens`, or what `profile` has measured.

    The cost of attention comes on top: for each prompt token and token of its context.

    Raises ConfigError, which says what is wrong with the file, for `planner_profile_data`.
    """
    arrays = None if profile is None else _read_profile(Path(profile))
    attention_ms = attention_us_per_ktoken2 * 1e-9
    return StepTiming(total_tokens, decode_speedup, arrays, attention_ms)


def _read_profile(path: Path) -> tuple[NDArray[np.float64], ...]:
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise bad_setting(KEY, f"{path} is not an NPZ file")
            itl = next((name for name in _ITL_NAMES if name in file.files), _ITL_NAMES[0])
            names = ("prefill_isl", "prefill_ttft_ms", *_AXES[1:], itl)
            arrays = {name: _numbers(file, name, path) for name in names}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is not an NPZ file of numbers"
        raise bad_setting(KEY, f"cannot read {path}: {reason}") from None
    for name in _AXES:
        _check_axis(arrays[name], name, path)
    _check_shape(arrays, "prefill_ttft_ms", arrays["prefill_isl"].shape, path)
    _check_shape(arrays, itl, (*arrays[_AXES[1]].shape, *arrays[_AXES[2]].shape), path)
    for name in ("prefill_ttft_ms", itl):
        if (arrays[name] <= 0).any():
            raise bad_setting(KEY, f"{path}: {name} has a time that is not above 0")
    return tuple(arrays[name] for name in names)


def _numbers(file: Any, name: str, path: Path) -> NDArray[np.float64]:
    if name not in file.files:
        raise bad_setting(KEY, f"{path}: array {name} is missing")
    values = file[name]
    if values.dtype.kind not in "iuf":
        raise bad_setting(KEY, f"{path}: {name} has no numbers")
    numbers = np.ascontiguousarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise bad_setting(KEY, f"{path}: {name} has a value that is not finite")
    return numbers


def _check_axis(values: NDArray[np.float64], name: str, path: Path) -> None:
    if values.ndim != 1:
        raise bad_setting(KEY, f"{path}: {name} has {values.ndim} dimensions, not 1")
    if len(values) < 2:
        raise bad_setting(KEY, f"{path}: {name} needs 2 points, it has {len(values)}")
    if values[0] < 0 or not (np.diff(values) > 0).all():
        raise bad_setting(KEY, f"{path}: {name} must grow from point to point, from 0 or more")


def _check_shape(
    arrays: dict[str, NDArray[np.float64]], name: str, wanted: tuple[int, ...], path: Path
) -> None:
    if arrays[name].shape != wanted:
        raise bad_setting(KEY, f"{path}: {name} has the shape {arrays[name].shape}, not {wanted}")
