"""AnswerWatch: each request that HTTP listeners answered is counted, logged and traced once."""

from ..base.request_record import RequestRecord
from .dispatch import NO_TRACE, Tracing, log_answer
from .metrics import HttpAnswers


class AnswerWatch:
    """Observer of all HTTP listeners of a process."""

    def __init__(self, counts: HttpAnswers, tracing: Tracing, *, access_log: bool) -> None:
        self.counts = counts
        self._tracing, self._logs = tracing, access_log

    def on_request(self, record: RequestRecord) -> None:
        if self._tracing is not NO_TRACE:
            record.trace = self._tracing.begin_http(record)

    def on_end(self, record: RequestRecord) -> None:
        self.counts.count(record)
        if self._logs:
            log_answer(record)
        if self._tracing is not NO_TRACE:
            trace = record.trace or self._tracing.begin_http(record)
            if trace is not None:
                trace.ended(record)
