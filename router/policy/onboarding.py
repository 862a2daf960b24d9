"""Onboarding: how long blocks of host memory and disk take onto a device, learnt from first tokens.

A block that has to be loaded saves of its prefill what its transfer does not take. Until it was
seen how long that is, the fixed weights of the tiers say it. Pure; arrays are by worker number.
"""

from typing import NamedTuple

import numpy as np

from .dynamo_cost import Blocks, CostParams, Floats

_FADE = 0.99  # of what is known, at each sample
_PRIOR = 4.0 * 32.0**2  # samples of 32 blocks: the weight of what was believed before
_UNLEARNT = CostParams()


class Load(NamedTuple):
    """What a request finds at its worker by the index, in blocks, and what those save."""

    number: int
    device: int
    lower: tuple[int, int]  # in host memory, on disk
    block_size: int
    weights: tuple[float, float]  # blocks of prefill that a block of each saves

    def loaded(self, cached_tokens: int) -> tuple[int, int]:
        """Blocks of each lower tier among the tokens that its engine found cached."""
        blocks = max(0, cached_tokens // self.block_size - self.device)
        host = min(blocks, self.lower[0])
        return host, min(blocks - host, self.lower[1])

    def unsaved_tokens(self, loaded: tuple[int, int]) -> int:
        """Prompt tokens that take as long to compute as these blocks take to load.

        Not more than the cached ones: the forecast of a prompt has no more tokens than that.
        """
        unsaved = sum((1 - w) * n for w, n in zip(self.weights, loaded, strict=True))
        return int(min(unsaved, self.device + sum(loaded)) * self.block_size)


class _Fit:
    """Seconds of a block of each tier, by least squares over first tokens; old samples fade."""

    __slots__ = ("moments", "products", "seconds")

    def __init__(self) -> None:
        self.moments = (0.0, 0.0, 0.0)  # sums of host x host, host x disk, disk x disk
        self.products = (0.0, 0.0)  # of each with the seconds
        self.seconds: tuple[float, float] | None = None

    def add(self, host: int, disk: int, took_s: float, before: tuple[float, float]) -> None:
        """Learn that these blocks took this long together; `before`: what is believed without."""
        hh, hd, dd = (_FADE * each for each in self.moments)
        self.moments = hh, hd, dd = hh + host * host, hd + host * disk, dd + disk * disk
        h, d = (_FADE * each for each in self.products)
        self.products = h, d = h + host * took_s, d + disk * took_s
        hh, dd = hh + _PRIOR, dd + _PRIOR
        h, d = h + _PRIOR * before[0], d + _PRIOR * before[1]
        size = hh * dd - hd * hd
        self.seconds = max(0.0, (h * dd - d * hd) / size), max(0.0, (d * hh - h * hd) / size)


class Onboarding:
    """Seconds to load a block, by worker and tier; a worker begins with what the fleet takes."""

    def __init__(self) -> None:
        self._fleet = _Fit()
        self._workers: dict[int, _Fit] = {}
        self._seconds: Floats = np.full((2, 0), np.nan)  # nan: as the fleet's

    def block_s(self, number: int, computing_s: float) -> tuple[float, float]:
        """Of host memory and disk at a worker, where computing a block takes `computing_s`."""
        fit = self._workers.get(number)
        if fit is not None and fit.seconds is not None:
            return fit.seconds
        return self._fleet_s(computing_s)

    def weights(self, number: int, computing_s: float) -> tuple[float, float]:
        """Blocks of prefill that a block of each tier saves; below 0 if computing is faster."""
        host, disk = self.block_s(number, computing_s)
        return 1 - host / computing_s, 1 - disk / computing_s

    def saved(self, device: Blocks, host: Blocks, disk: Blocks, computing_s: float) -> Blocks:
        """Whole blocks of prefill that each worker is spared, by what loading takes there."""
        self._reach(len(device))
        seconds = self._seconds[:, : len(device)]
        fleet = np.array(self._fleet_s(computing_s))[:, None]
        weights = 1 - np.where(np.isnan(seconds), fleet, seconds) / computing_s
        total: Floats = device + weights[0] * host + weights[1] * disk
        saved: Blocks = np.maximum(total, 0.0).astype(np.uint32)
        return saved

    def learn(self, number: int, loaded: tuple[int, int], took_s: float, used_s: float) -> None:
        """Loading these blocks took so long; `used_s` is what computing one was taken to last."""
        host, disk = loaded
        if not host and not disk:
            return
        self._fleet.add(host, disk, took_s, _unlearnt_s(used_s))
        mine = self._workers.setdefault(number, _Fit())
        mine.add(host, disk, took_s, self._fleet_s(used_s))
        self._reach(number + 1)
        self._seconds[:, number] = mine.seconds

    def forget(self, number: int) -> None:
        """The worker of that number is gone."""
        self._workers.pop(number, None)
        if number < self._seconds.shape[1]:
            self._seconds[:, number] = np.nan

    def _fleet_s(self, computing_s: float) -> tuple[float, float]:
        return self._fleet.seconds or _unlearnt_s(computing_s)

    def _reach(self, size: int) -> None:
        missing = size - self._seconds.shape[1]
        if missing > 0:
            self._seconds = np.concatenate([self._seconds, np.full((2, missing), np.nan)], axis=1)


def _unlearnt_s(computing_s: float) -> tuple[float, float]:
    """What the fixed weights of the tiers stand for."""
    return (
        (1 - _UNLEARNT.host_cache_hit_weight) * computing_s,
        (1 - _UNLEARNT.disk_cache_hit_weight) * computing_s,
    )
