"""Reports of requests that fronts make: heard by their own health monitor, and by the decider's."""

from collections.abc import Callable
from typing import Any

from ...workers.failures import Verdict
from ...workers.request_reports import RequestReports
from .messages import Report


def _nobody(report: Report) -> None:
    """Nobody is told."""


class ToldReports(RequestReports):
    """Those of a front: each is also told to the decider, as a Report. Set `tell` to have it so."""

    tell: Callable[[Any], None] = staticmethod(_nobody)

    def sent(self, worker_id: int) -> None:
        super().sent(worker_id)
        self.tell(Report("sent", worker_id))

    def answered(self, worker_id: int, seconds: float) -> None:
        super().answered(worker_id, seconds)
        self.tell(Report("answered", worker_id, seconds))

    def succeeded(self, worker_id: int, seconds: float) -> None:
        super().succeeded(worker_id, seconds)
        self.tell(Report("succeeded", worker_id, seconds))

    def blank(self, worker_id: int, seconds: float, *, pinned: bool) -> None:
        if pinned:
            self.succeeded(worker_id, seconds)
            return
        super().blank(worker_id, seconds, pinned=False)
        self.tell(Report("blank", worker_id, seconds))

    def failed(
        self, worker_id: int, verdict: Verdict, seconds: float, *, pinned: bool = False
    ) -> None:
        # Told first: it tells of itself what it notices on the way.
        self.tell(Report("failed", worker_id, seconds, pinned, verdict))
        tell, self.tell = self.tell, _nobody
        try:
            super().failed(worker_id, verdict, seconds, pinned=pinned)
        finally:
            self.tell = tell

    def noticed(self, worker_id: int, verdict: Verdict) -> None:
        super().noticed(worker_id, verdict)
        self.tell(Report("noticed", worker_id, verdict=verdict))

    def given_up(self, worker_id: int) -> None:
        super().given_up(worker_id)
        self.tell(Report("given_up", worker_id))

    def convicted(self, worker_id: int, verdict: Verdict) -> None:
        super().convicted(worker_id, verdict)
        self.tell(Report("convicted", worker_id, verdict=verdict))

    def undecided(self, worker_id: int) -> None:
        super().undecided(worker_id)
        self.tell(Report("undecided", worker_id))

    def stuck(self, worker_id: int, since: float) -> None:
        super().stuck(worker_id, since)
        self.tell(Report("stuck", worker_id, self._now() - since))


def take_report(reports: RequestReports, report: Report, now: float) -> None:
    """Hear what a front reports. ValueError if there is no such report."""
    worker_id, seconds, verdict = report.worker_id, report.seconds, report.verdict
    match report.kind, verdict:
        case (("sent" | "given_up" | "undecided"), None):
            getattr(reports, report.kind)(worker_id)
        case (("answered" | "succeeded"), None):
            getattr(reports, report.kind)(worker_id, seconds)
        case "blank", None:
            reports.blank(worker_id, seconds, pinned=False)
        case "stuck", None:
            reports.stuck(worker_id, now - seconds)
        case "failed", Verdict():
            reports.failed(worker_id, verdict, seconds, pinned=report.pinned)
        case (("noticed" | "convicted"), Verdict()):
            getattr(reports, report.kind)(worker_id, verdict)
        case _:
            raise ValueError(f"there is no report {report.kind!r}")
