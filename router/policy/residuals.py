"""ResidualWatch: whether what a policy foresees comes true. Pure: it is told, and says.

A prediction's residual is the logarithm of how many times longer it took than was foreseen. That
all take longer by the same factor changes no choice between workers; what counts is how far the
residuals scatter around their median, beside how far the times themselves scatter around theirs: a
forecast whose residuals scatter as much as the times do tells no more than the usual time would.
"""

import math
from collections import deque
from dataclasses import dataclass

WINDOW = 64  # latest predictions that count, of the fleet
WORKER_WINDOW = 32  # and of one worker
LEAST = 24  # predictions without which nothing is said
CHECK_EVERY = 16  # first tokens of the fleet
WORKER_CHECK_EVERY = 8  # of one worker

FAILS = 0.4  # scatter from which predictions can fail: half of them are off by half or more
HOLDS = 0.25  # below it they hold
FAILS_SKILL = 0.1  # share of the times' scatter that a forecast at least explains,
HOLDS_SKILL = 0.3  # and that one explains which is trusted again
CONFIRMED = 3  # checks in a row that have to agree before predictions fail,
TRUSTED = 6  # and before they hold again; doubled each time that they fail again,
MOST_TRUSTED = 96  # up to this
FAILING_SHARE = 0.5  # of the workers, from which on the forecast fails for all

TTFT_SLACK_S = 0.05  # differences that are small beside this are none
ITL_SLACK_S = 0.002


Prediction = tuple[float, float, float, float]
"""What is kept of one: its residual, the logarithm of the time it took, and foreseen and seen s."""


@dataclass(frozen=True)
class FailedPrediction:
    """What failed: `ttft` or `itl` of the fleet, or the TTFTs of single workers.

    The times are of one prediction, the latest that is off by the `scatter` or more: half of them
    are. `worker` is the number of the worker, where those of single ones failed.
    """

    kind: str
    foreseen_s: float
    took_s: float
    scatter: float
    worker: int | None = None


class Residuals:
    """The latest predictions of one kind: how well they did."""

    def __init__(self, window: int, slack_s: float) -> None:
        self._kept: deque[Prediction] = deque(maxlen=window)
        self._slack = slack_s
        self.told = 0
        """predictions, ever"""

    def add(self, foreseen_s: float, took_s: float) -> Prediction:
        """A prediction came true so. What is kept of it, for others of the same slack."""
        took = math.log(max(0.0, took_s) + self._slack)
        residual = took - math.log(max(0.0, foreseen_s) + self._slack)
        prediction = residual, took, foreseen_s, took_s
        self.keep(prediction)
        return prediction

    def keep(self, prediction: Prediction) -> None:
        """The same, from what `add` returned."""
        self.told += 1
        self._kept.append(prediction)

    def failed(self, kind: str, worker: int | None = None) -> "FailedPrediction":
        """The latest prediction that is off by as much as half of them are, or more."""
        middle = sorted(each[0] for each in self._kept)[len(self._kept) // 2]
        scatter = self.scatter()
        _, _, foreseen_s, took_s = next(
            each for each in reversed(self._kept) if abs(each[0] - middle) >= scatter
        )
        return FailedPrediction(kind, foreseen_s, took_s, scatter, worker)

    def scatter(self) -> float:
        """Median distance of the residuals from their median; 0 while too few are known."""
        if len(self._kept) < LEAST:
            return 0.0
        return _scatter([each[0] for each in self._kept])

    def skill(self) -> float:
        """Share of the times' own scatter that was foreseen; 1 while too few are known."""
        if len(self._kept) < LEAST:
            return 1.0
        usual = _scatter([each[1] for each in self._kept])
        return 1.0 - self.scatter() / usual if usual > 0 else -math.inf

    @property
    def fail(self) -> bool:
        """Whether they are clearly no better than the usual time would be."""
        return self.scatter() > FAILS and self.skill() < FAILS_SKILL

    @property
    def hold(self) -> bool:
        """Whether they are clearly good, or say much."""
        return self.scatter() < HOLDS or self.skill() > HOLDS_SKILL


@dataclass(frozen=True, kw_only=True)
class ResidualState:
    """What a watch has come to.

    Not `trusted`: the forecast does not decide. A scatter of 0.1 says that half of the predictions
    were off by a tenth or more, beside what all were off by.
    """

    trusted: bool
    ttft_scatter: float
    itl_scatter: float
    failing_workers: int  # whose own predictions of TTFT fail
    fallbacks: int  # times that predictions began to fail
    failed: FailedPrediction | None = None  # what failed the last time


class ResidualWatch:
    """Says whether a forecast is to be trusted: until predictions fail, and again once they hold.

    Predictions fail if those of the fleet do, of TTFT or of ITL, or those of TTFT of half of the
    workers that enough is known of. Both ways it takes several checks in a row, and the more of
    them before trust comes back, the more often it was lost.
    """

    def __init__(self) -> None:
        self.trusted = True
        self.falls = 0
        self.failed: FailedPrediction | None = None
        self._ttft = Residuals(WINDOW, TTFT_SLACK_S)
        self._itl = Residuals(WINDOW, ITL_SLACK_S)
        self._workers: dict[int, Residuals] = {}
        self._known: set[int] = set()  # workers of which enough is known,
        self._failing: set[int] = set()  # and those of them whose predictions fail
        self._told = 0
        self._agreeing = 0  # checks in a row that speak against the state
        self._needed = TRUSTED

    def on_first_token(self, worker: int, foreseen_s: float, took_s: float) -> bool:
        """A first token came so long after its booking. Whether `trusted` changed."""
        prediction = self._ttft.add(foreseen_s, took_s)
        own = self._workers.get(worker)
        if own is None:
            own = self._workers[worker] = Residuals(WORKER_WINDOW, TTFT_SLACK_S)
        own.keep(prediction)
        if own.told >= LEAST and own.told % WORKER_CHECK_EVERY == 0:
            self._known.add(worker)
            (self._failing.add if own.fail else self._failing.discard)(worker)
        return self._ttft.told % CHECK_EVERY == 0 and self._check()

    def on_answer(self, foreseen_s: float, took_s: float) -> None:
        """A token of an answer took so long."""
        self._itl.add(foreseen_s, took_s)

    def on_worker_gone(self, worker: int) -> None:
        self._workers.pop(worker, None)
        self._known.discard(worker)
        self._failing.discard(worker)

    def state(self) -> ResidualState:
        return ResidualState(
            trusted=self.trusted,
            ttft_scatter=self._ttft.scatter(),
            itl_scatter=self._itl.scatter(),
            failing_workers=len(self._failing),
            fallbacks=self.falls,
            failed=self.failed,
        )

    def worker_scatter(self, worker: int) -> float:
        """Of its own predictions of TTFT; 0 while too few are known."""
        known = self._workers.get(worker)
        return 0.0 if known is None else known.scatter()

    def _check(self) -> bool:
        against = self._fail() if self.trusted else self._hold()
        self._agreeing = self._agreeing + 1 if against else 0
        if self._agreeing < (CONFIRMED if self.trusted else self._needed):
            return False
        self._agreeing = 0
        self.trusted = not self.trusted
        if not self.trusted:
            self.falls += 1
            self.failed = self._failed()
            self._needed = min(MOST_TRUSTED, TRUSTED * 2 ** min(self.falls - 1, 10))
        return True

    def _fail(self) -> bool:
        return self._ttft.fail or self._itl.fail or self._failing_share() >= FAILING_SHARE

    def _failed(self) -> FailedPrediction:
        """What speaks against the forecast, where something does."""
        if self._ttft.fail:
            return self._ttft.failed("ttft")
        if self._itl.fail:
            return self._itl.failed("itl")
        worst = max(self._failing, key=lambda worker: self._workers[worker].scatter())
        return self._workers[worst].failed("worker_ttft", worst)

    def _hold(self) -> bool:
        return self._ttft.hold and self._itl.hold and self._failing_share() < FAILING_SHARE / 2

    def _failing_share(self) -> float:
        return len(self._failing) / len(self._known) if len(self._known) > 1 else 0.0


def _scatter(values: list[float]) -> float:
    """Median distance from the median, of the upper ones where there are two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    middle = ordered[half]
    # Both halves in ascending order: what is sorted already takes no time to sort.
    distances = [middle - value for value in ordered[half::-1]]
    distances += [value - middle for value in ordered[half + 1 :]]
    distances.sort()
    return distances[half]
