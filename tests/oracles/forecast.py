"""What a forecast must agree with: least squares, and engines that compute what they are sent.

Nothing here repeats the forecast's terms. An engine of the mocker takes the times that the
forecast was told to believe; what it then does, step by step, is the truth about waiting.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
from instruments.forecast_constants import (
    CONTEXT_TOKENS,
    EQUAL_SPEED,
    FADE,
    FADE_SPEED,
    MIN_SAMPLES,
    MOST_SLOWER,
    OUTLIER,
    PRIOR,
    SLOW,
    SLOWEST,
)

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.virtual import Emitted, VirtualFleet
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import ForecastParams

BLOCK_SIZE = 16


class OracleFit:
    """Least squares with a prior; every old sample is kept, with its faded weight.

    Each counts divided by the slowness that its worker had when its newest sample came.
    """

    def __init__(self, *start):
        self.start = np.array(start, float)
        self.theta = self.start.copy()
        self.samples = []
        self.slowness = {}
        self.error = self.mean = 0.0

    def predict(self, x):
        return float(self.theta @ np.array(x))

    def add(self, x, y, worker=0, slowness=1.0):
        usual = y / slowness
        error, weight = abs(usual - self.predict(x)), 1.0
        if not self.samples:
            self.error, self.mean = error, usual
        elif error > OUTLIER * self.error > 0:
            weight = OUTLIER * self.error / error
            error = OUTLIER * self.error
        self.error += SLOW * (error - self.error)
        self.mean += SLOW * (usual - self.mean)
        self.slowness[worker] = slowness
        self.samples = [(a, b, w * FADE, of) for a, b, w, of in self.samples]
        self.samples.append((np.array(x, float), y, weight, worker))
        moments = PRIOR * np.eye(4) + sum(w * np.outer(a, a) for a, _, w, _ in self.samples)
        products = PRIOR * self.start
        products = products + sum(w * b / self.slowness[of] * a for a, b, w, of in self.samples)
        theta = np.linalg.solve(moments, products)
        if theta[3] < 0:
            theta = np.append(np.linalg.solve(moments[:3, :3], products[:3]), 0.0)
        self.theta = np.maximum(0.0, theta)


class OracleSpeeds:
    """How slow each worker is beside a fit of all: every sample is kept, and faded by age."""

    def __init__(self, workers):
        self.samples = {worker: [] for worker in range(workers)}
        self.seen = 0

    def add(self, worker, took, fit, x):
        """Learn, and teach the fit."""
        compares = len(fit.samples) >= MIN_SAMPLES
        expected = fit.predict(x)
        self.seen += compares
        slowness = self.slowness(worker, fit)
        if compares:
            before = self.samples[worker]
            lately = before[-1][2] if before else 0.0
            most = max(MOST_SLOWER, lately) * expected
            before.append((min(took, most), x, took / expected, self.seen))
        fit.add(x, took, worker, slowness)

    def slowness(self, worker, fit):
        kept = FADE_SPEED ** (1 / len(self.samples))
        took = expected = 4 * fit.mean
        for seen, x, _, at in self.samples[worker]:
            took += seen * kept ** (self.seen - at)
            expected += fit.predict(x) * kept ** (self.seen - at)
        ratio = took / expected if expected else 1.0
        if ratio <= 1 + EQUAL_SPEED:
            return 1.0
        return min(SLOWEST, ratio, 1 + 2 * (ratio - 1 - EQUAL_SPEED))


def cold_s(params, isl):
    """Seconds of a prompt on an idle engine with nothing cached, as believed, step by step."""
    seconds, left = 0.0, isl
    while left > 0:
        seconds += params.step_s + params.token_s * min(left, 8192)
        left -= 8192
    return seconds


def first_token_cost(params, isl, waiting, own):
    """What it costs a prompt to compute so long and wait so long, second by second.

    A second of computing weighs 1, and 2 more for each time that it has computed what is usual and
    what it takes cold; one of waiting behind that 1 more for each time of the usual, twice for what
    it has waited itself, and as computing once.
    """
    usual = params.ttft_s
    longer = usual + cold_s(params, isl)
    computed, waited = np.linspace(0.0, own, 2001), np.linspace(0.0, waiting, 2001)
    computing = np.trapezoid(1 + 2 * computed / longer, computed)
    slope = 1 + (2 * waited + own) / usual + own / longer
    return float(computing + np.trapezoid(slope, waited))


def running_mean(start, values):
    """A mean of which each value is a hundredth when it comes."""
    ages = np.arange(len(values))[::-1]
    return start * 0.99 ** len(values) + float(np.sum(0.01 * 0.99**ages * np.array(values)))


def mutual_decode_s(theta, contexts, new_context, tokens):
    """Seconds that decode steps get longer because a request comes, over `tokens` of each.

    Summed over everybody: those that decode, whose steps it lengthens, and itself.
    """

    def step(those):
        return theta[0] + theta[1] * sum(those) / CONTEXT_TOKENS + theta[2] * len(those)

    together = step([*contexts, new_context])
    theirs = len(contexts) * (together - step(contexts))
    return tokens * (theirs + together - step([new_context]))


def missed_weight(requests, workers):
    """How much more a missed objective counts: seven times as much in an idle fleet, no more from
    two requests a worker on."""
    return 1.0 + 6.0 * (1.0 - min(1.0, requests / workers / 2)) ** 2


@cache
def felt_share(requests, workers):
    """For how much of half an answer it is felt where a request went, by following the rest of it.

    What is left ends at a rate of 1, and at that at which 0.3 of those who come even it out.
    """
    times = np.linspace(0.0, 60.0, 600_001)
    left = np.exp(-(1.0 + 0.3 * requests / workers) * times)
    return float(np.trapezoid(left, times))


def missed_objectives(theta, scale, contexts, new_context):
    """Requests more that miss their ITL objective because one comes, by adding up everybody's.

    A step times `scale` is what a token takes, in parts of the objective. Four count at most.
    """

    def expected(those):
        step_s = theta[0] + theta[1] * sum(those) / CONTEXT_TOKENS + theta[2] * len(those)
        chance = 0.5 + 0.5 * math.tanh((scale * step_s - 1) / 0.16) if those else 0.0
        return len(those) * chance

    return min(4.0, expected([*contexts, new_context]) - expected(contexts))


def held_tokens(ages, answer_s, output_tokens):
    """Tokens of answers in a cache, by the seconds since each first token; None: not known.

    An answer's tokens come evenly, and four usual answers are the most that all have on average.
    """
    begun = [age for age in ages if age is not None]
    tokens = sum(age / answer_s * output_tokens for age in begun)
    tokens = min(tokens, 4 * len(begun) * output_tokens)
    return tokens + (len(ages) - len(begun)) * output_tokens / 2


def memory_wait_s(requests, capacity, blocks, answer_s, output_tokens, block_size):
    """Seconds until the blocks have room: the mean over errors of 4 % of the cache, by counting.

    Of each request's answer half is there. A full cache ends in the time of an answer.
    """
    parts = (np.arange(200_000) + 0.5) / 200_000
    errors = 0.04 * np.log(parts / (1 - parts))
    grown = blocks + requests * output_tokens / 2 / block_size
    return float(np.mean(np.maximum(0.0, grown / capacity - 1 + errors))) * answer_s


class BelievedFleet:
    """Mock engines, and a forecast that believes their true speed and hears every first token.

    A step takes `params.step_s`, `params.token_s` more for each prompt token, and half of
    `params.step_s` more where requests decode.
    """

    def __init__(self, folder: Path, workers: int, budget: int, **params):
        believed = {"step_s": 0.0213717, "token_s": 2.0101e-5, "context_s": 1e-15, "ttft_s": 1e3}
        self.params = ForecastParams(**{**believed, **params})
        self.step_s, self.token_s = self.params.step_s, self.params.token_s
        self.decode_s = self.step_s / 2
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=2**16,
            max_num_batched_tokens=budget,
            planner_profile_data=self._profile(folder),
        )
        self.engines = VirtualFleet(config, workers, record_events=False)
        self.forecast = Forecast(self.params)
        self.workers = workers
        for number in range(workers):
            self.forecast.add_worker(number, budget, None)
        self.now = 0.0
        self.first_tokens: dict[int, float] = {}
        self.sent_at: list[float] = []
        self.own_s: list[float] = []  # what its steps were foreseen to take
        self._outputs: list[int] = []

    def _profile(self, folder):
        path = folder / "profile.npz"
        if not path.exists():
            isl = np.array([1.0, 2.0])
            np.savez(
                path,
                prefill_isl=isl,
                prefill_ttft_ms=1e3 * (self.step_s + self.token_s * isl),
                decode_active_kv_tokens=np.array([0.0, 1.0]),
                decode_context_length=np.array([0.0, 1.0]),
                decode_itl_ms=np.full((2, 2), 1e3 * self.decode_s),
            )
        return str(path)

    def advance(self, seconds):
        """Let time pass; the forecast hears of tokens when they come."""
        self.now += seconds
        self.engines.advance(self.now)
        self._report()

    def finish(self):
        """Let every request come to its end. Returns first-token times by request."""
        self.engines.advance(math.inf)
        self._report()
        return self.first_tokens

    def _report(self):
        tokens = self.engines.take_emissions()
        for now, request, kinds in zip(tokens.times, tokens.requests, tokens.kinds, strict=True):
            if kinds & Emitted.FIRST:
                self.first_tokens[int(request)] = float(now)
                self.forecast.first_token(str(request), float(now))
            if kinds & Emitted.LAST:
                self.forecast.end(str(request), float(now), self._outputs[request])

    def send(self, worker, tokens, output=1):
        """A prompt that shares nothing with others, to a worker, now."""
        request = len(self._outputs)
        self._outputs.append(output)
        self.sent_at.append(self.now)
        self.own_s.append(self.explain(tokens, worker)["prefill_s"])
        blocks = (tokens + output) // BLOCK_SIZE
        hashes = np.arange(blocks, dtype=np.uint64) + np.uint64((request + 1) << 32)
        self.engines.submit(
            worker,
            request,
            prompt_tokens=tokens,
            output_tokens=output,
            local_hashes=hashes,
            sequence_hashes=hashes,
            now=self.now,
        )
        self.forecast.book(str(request), worker, tokens, tokens, self.now)
        return request

    def explain(self, tokens, worker=0):
        """The terms of this prompt's cost on a worker, now."""
        return self.forecast.explain(tokens, BLOCK_SIZE, None, None, None, self.workers, self.now)[
            worker
        ]

    def until_free(self):
        everyone = np.ones(self.workers, np.bool_)
        return self.forecast.seconds_until_free(
            everyone, np.zeros(self.workers, np.int64), self.now
        )
