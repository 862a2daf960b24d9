"""Curves: what an engine does at a length, a context and a cache use, as Dynamo's profiler has it.

Dynamo's planner reads NPZ files of `prefill_isl`, `prefill_ttft` (ms) and `prefill_thpt_per_gpu`
(tokens a second), and of `x_kv_usage` (0 to 1), `y_context_length`, `z_itl` (ms), `z_thpt_per_gpu`
and `max_kv_tokens`: points, not a grid. They are read as they are; without a file the curves are
those of the mock engine's own timing.
"""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..engines.mocker import EngineConfig
from ..process.settings import bad_setting

PREFILL = ("prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu")
DECODE = ("x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu", "max_kv_tokens")
KEY = "profile"
LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LEAST, MOST = 1e-3, 1e9
"""ms, and tokens a second, that a profile may have."""
USES = np.linspace(0.05, 1.0, 20)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Points of an engine of one accelerator: lengths in tokens, times in ms, tokens a second."""

    isl: Array
    ttft_ms: Array
    prefill_rate: Array
    kv_usage: Array
    context: Array
    itl_ms: Array
    decode_rate: Array
    max_kv_tokens: float

    def prefill_tokens_per_s(self, isl: float) -> float:
        """Prompt tokens a second at a length, between the points measured."""
        return float(np.interp(isl, self.isl, self.prefill_rate))

    def ttft(self, isl: float) -> float:
        """TTFT in ms of a prompt alone."""
        return float(np.interp(isl, self.isl, self.ttft_ms))

    def decode_tokens_per_s(self, itl_ms: float, context: float) -> float:
        """Most output tokens a second at which ITL stays within `itl_ms`, at the context measured
        that is nearest; where none does, what the fastest point has."""
        near = np.abs(self.context - context) == np.abs(self.context - context).min()
        within = near & (self.itl_ms <= itl_ms)
        if within.any():
            return float(self.decode_rate[within].max())
        fastest = np.flatnonzero(near)[np.argmin(self.itl_ms[near])]
        return float(self.decode_rate[fastest])

    def itl(self, requests: float, context: float) -> float:
        """ITL in ms of a number of requests of a context."""
        use = requests * context / self.max_kv_tokens
        near = np.abs(self.context - context) == np.abs(self.context - context).min()
        order = np.argsort(self.kv_usage[near])
        return float(np.interp(use, self.kv_usage[near][order], self.itl_ms[near][order]))

    @classmethod
    def of_engine(cls, engine: EngineConfig, speed: float = 1.0) -> Self:
        """What the mock engine's timing gives, at this multiple of its speed."""
        timing, capacity = engine.timing, float(engine.capacity_tokens)
        isl = np.array([n for n in LENGTHS if n <= capacity], np.float64)
        ttft = np.array(
            [timing.prefill_ms(int(n)) + timing.attention_ms(int(n), 0) for n in isl], np.float64
        )
        rows = []
        for context in isl:
            for use in USES:
                requests = int(min(engine.max_num_seqs, use * capacity // context))
                if requests >= 1:
                    itl = timing.decode_ms(int(requests * context), requests)
                    rows.append((requests * context / capacity, context, itl, requests / itl * 1e3))
        table = np.array(rows, np.float64)
        usage, contexts, itls, rates = table.T
        ttft, itls, rates = ttft / speed, itls / speed, rates * speed
        return cls(isl, ttft, isl / ttft * 1e3, usage, contexts, itls, rates, capacity)


def read_curves(paths: Sequence[str]) -> Curves:
    """The arrays of all files together. ConfigError, for `profile`, with what is wrong."""
    arrays: dict[str, Array] = {}
    for path in paths:
        arrays.update(_read(Path(path)))
    missing = [name for name in (*PREFILL, *DECODE) if name not in arrays]
    if missing:
        raise bad_setting(KEY, f"{', '.join(paths)}: array {missing[0]} is missing")
    for names in (PREFILL, DECODE[:4]):
        sizes = {name: arrays[name].size for name in names}
        if len(set(sizes.values())) > 1 or not all(sizes.values()):
            raise bad_setting(KEY, f"arrays of one curve differ in length: {sizes}")
    for name in ("prefill_ttft", "prefill_thpt_per_gpu", "z_itl", "z_thpt_per_gpu"):
        if (arrays[name] <= 0).any():
            raise bad_setting(KEY, f"{name} has a value that is not above 0")
        if ((arrays[name] < LEAST) | (arrays[name] > MOST)).any():
            raise bad_setting(KEY, f"{name} has a value that is not from {LEAST:g} to {MOST:g}")
    usage = arrays["x_kv_usage"]
    if (usage < 0).any() or (usage > 1).any():
        raise bad_setting(KEY, "x_kv_usage has a share that is not from 0 to 1")
    if arrays["max_kv_tokens"].size != 1 or arrays["max_kv_tokens"].item() < 1:
        raise bad_setting(KEY, "max_kv_tokens must be one number of tokens")
    order = np.argsort(arrays["prefill_isl"])
    isl, ttft, prefill_rate = (arrays[name].ravel()[order] for name in PREFILL)
    usage, context, itl, decode_rate = (arrays[name].ravel() for name in DECODE[:4])
    capacity = float(arrays["max_kv_tokens"].item())
    return Curves(isl, ttft, prefill_rate, usage, context, itl, decode_rate, capacity)


def _read(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise bad_setting(KEY, f"{path} is not an NPZ file")
            known = [name for name in file.files if name in (*PREFILL, *DECODE)]
            found = {name: np.asarray(file[name]) for name in known}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is not an NPZ file of numbers"
        raise bad_setting(KEY, f"cannot read {path}: {reason}") from None
    for name, values in found.items():
        if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise bad_setting(KEY, f"{path}: {name} has a value that is no finite number")
    return {name: values.astype(np.float64) for name, values in found.items()}
