"""ResidualWatch: whether what a policy foresees comes true. Pure: predictions and outcomes go in.

A prediction's residual is the logarithm of how many times longer it took than was foreseen. That
all take longer by the same factor changes no choice between workers; what counts is how far the
residuals scatter around their median, beside how far the times themselves scatter around theirs: a
forecast whose residuals scatter as much as the times do is worth no more than the usual time would.
The predictions themselves are kept by the kernel `_residuals`.
"""

from dataclasses import dataclass

from ._residuals import Residuals

WINDOW = 64  # latest predictions that count, of the fleet
WORKER_WINDOW = 32  # and of one worker
LEAST = 24  # predictions without which there is no verdict
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
        self.falls = 0
        self.failed: FailedPrediction | None = None
        self.forget()

    def forget(self) -> None:
        """Start over, trusting: something of the engines became known that predictions lacked."""
        self.trusted = True
        self._ttft = Residuals(WINDOW, TTFT_SLACK_S, LEAST)
        self._itl = Residuals(WINDOW, ITL_SLACK_S, LEAST)
        self._workers: dict[int, Residuals] = {}
        self._known: set[int] = set()  # workers of which enough is known,
        self._failing: set[int] = set()  # and those of them whose predictions fail
        self._agreeing = 0  # checks in a row that speak against the state
        self._needed = TRUSTED

    def on_first_token(self, worker: int, foreseen_s: float, took_s: float) -> bool:
        """A first token came so long after its booking. Whether `trusted` changed."""
        self._ttft.add(foreseen_s, took_s)
        own = self._workers.get(worker)
        if own is None:
            own = self._workers[worker] = Residuals(WORKER_WINDOW, TTFT_SLACK_S, LEAST)
        own.add(foreseen_s, took_s)
        if own.count >= LEAST and own.count % WORKER_CHECK_EVERY == 0:
            self._known.add(worker)
            (self._failing.add if _fail(own) else self._failing.discard)(worker)
        return self._ttft.count % CHECK_EVERY == 0 and self._check()

    def has_seen(self, worker: int) -> bool:
        """Whether a prediction of its first tokens is among those that count."""
        return worker in self._workers

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
        return _fail(self._ttft) or _fail(self._itl) or self._failing_share() >= FAILING_SHARE

    def _failed(self) -> FailedPrediction:
        """What speaks against the forecast, where something does."""
        if _fail(self._ttft):
            return _failed(self._ttft, "ttft")
        if _fail(self._itl):
            return _failed(self._itl, "itl")
        worst = max(self._failing, key=lambda worker: self._workers[worker].scatter())
        return _failed(self._workers[worst], "worker_ttft", worst)

    def _hold(self) -> bool:
        return _hold(self._ttft) and _hold(self._itl) and self._failing_share() < FAILING_SHARE / 2

    def _failing_share(self) -> float:
        return len(self._failing) / len(self._known) if len(self._known) > 1 else 0.0


def _fail(known: Residuals) -> bool:
    """Whether they are clearly no better than the usual time would be."""
    return known.scatter() > FAILS and known.skill() < FAILS_SKILL


def _hold(known: Residuals) -> bool:
    """Whether they are clearly good, or say much."""
    return known.scatter() < HOLDS or known.skill() > HOLDS_SKILL


def _failed(known: Residuals, kind: str, worker: int | None = None) -> FailedPrediction:
    foreseen_s, took_s = known.telling()
    return FailedPrediction(kind, foreseen_s, took_s, known.scatter(), worker)
