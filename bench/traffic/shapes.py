"""Days of a shape: generated sessions, whose time runs as fast as the shape's rate says.

`sinus`     four times as busy at noon as at midnight
`step`      five times as busy from one moment on, within 10 s
`spike`     ten times as busy for a minute
`silence`   no arrivals in the middle third
`constant`  the same rate all day
`azure`     a working day of a chat service: busiest hours in the morning and the afternoon, 1.6
            times the mean and 3.3 times the night (after DynamoLLM, arXiv 2408.00741, of Azure's
            conversation service), prompts of 1020 and answers of 129 tokens in the median (after
            Splitwise, arXiv 2311.18677, of the same); prompts are taken to share nothing

A day is as long as its requests last at their mean rate. Where a step or a spike is depends on the
seed, so that one day's place says nothing of another's.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..traces import TraceRequest
from .generator import generate_traffic
from .spec import TrafficSpec

POINTS = 20_001
STEP_S, SPIKE_S = 10.0, 60.0

CHAT = TrafficSpec(
    family="chat",
    rate=1.0,
    prefixes=6,
    popularity=0.8,
    prefix_tokens=900,
    prefix_spread=0.3,
    turns=3.0,
    user_tokens=600,
    user_spread=0.9,
    output_tokens=200,
    output_spread=0.7,
    pause_s=20.0,
    pause_spread=0.8,
)
# Means that go with the medians published: 1020 tokens at a spread of 0.5, 129 at 1.0.
AZURE = TrafficSpec(
    family="azure",
    rate=1.0,
    prefixes=1,
    popularity=1.0,
    prefix_tokens=1,
    prefix_spread=0.0,
    turns=1.0,
    user_tokens=1156,
    user_spread=0.5,
    output_tokens=213,
    output_spread=1.0,
    pause_s=1.0,
    pause_spread=0.0,
)
# Hours of a working day, of the mean rate.
AZURE_HOURS = (
    *(0.62, 0.56, 0.53, 0.52, 0.52, 0.55, 0.65, 0.85, 1.15, 1.45, 1.65, 1.70),
    *(1.55, 1.50, 1.62, 1.66, 1.55, 1.35, 1.12, 0.98, 0.90, 0.82, 0.75, 0.68),
)

Curve = Callable[[NDArray[np.float64], float, float], NDArray[np.float64]]
"""Rates at places of a day from 0 to 1, of its length in seconds and where its event is."""


def _sinus(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    return 1 - 0.6 * np.cos(2 * np.pi * place)


def _step(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    rates: NDArray[np.float64] = 1 + 4 * np.clip((place - event) * day_s / STEP_S, 0, 1)
    return rates


def _spike(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    inside = (place >= event) & (place < event + SPIKE_S / day_s)
    return np.where(inside, 10.0, 1.0)


def _silence(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    return np.where((place > 1 / 3) & (place < 2 / 3), 0.0, 1.0)


def _constant(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    return np.ones_like(place)


def _azure(place: NDArray[np.float64], day_s: float, event: float) -> NDArray[np.float64]:
    hours = np.append(AZURE_HOURS, AZURE_HOURS[0])
    rates: NDArray[np.float64] = np.interp(24 * place, np.arange(25), hours)
    return rates


SHAPES: Mapping[str, tuple[Curve, TrafficSpec]] = {
    "sinus": (_sinus, CHAT),
    "step": (_step, CHAT),
    "spike": (_spike, CHAT),
    "silence": (_silence, CHAT),
    "constant": (_constant, CHAT),
    "azure": (_azure, AZURE),
}


def shape_traffic(name: str, requests: int, *, rate: float, seed: int) -> list[TraceRequest]:
    """A day of that shape, of blocks of TRAFFIC_BLOCK_SIZE tokens: `requests` at `rate` a
    second in the mean. KeyError for a name that is none of SHAPES."""
    made = generate_traffic(SHAPES[name][1], requests, rate=rate, seed=seed)
    return in_shape(name, made, rate=rate, seed=seed)


def in_shape(
    name: str, made: Sequence[TraceRequest], *, rate: float, seed: int
) -> list[TraceRequest]:
    """Requests of anywhere, in their order, at a shape's times. KeyError for an unknown shape."""
    curve, _ = SHAPES[name]
    day_s = len(made) / rate
    event = float(np.random.default_rng(seed).uniform(0.3, 0.6))
    places = np.linspace(0, 1, POINTS)
    rates = curve(places, day_s, event)
    passed = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2)])
    # Sessions keep their order and their pauses, as fast as the day is busy.
    times = np.array([each.timestamp_ms for each in made], np.float64)
    times -= times[0]
    share = times / max(1.0, times[-1])
    growing = np.concatenate([[True], np.diff(passed) > 0])
    warped = np.interp(share, passed[growing] / passed[-1], places[growing]) * day_s
    return [
        msgspec.structs.replace(each, timestamp_ms=round(float(at) * 1e3, 3))
        for each, at in zip(made, warped, strict=True)
    ]
