"""One attempt: a request to one worker, and its answer back to the client."""

import asyncio

from ...base.clock import Clock
from ...process.supervised import is_cancelled
from ...workers.channels import Metadata, deliver
from ...workers.failures import EngineCallError, Origin
from ...workers.health import HealthMonitor
from ..migration import EndedEarlyError
from .engine_calls import Answers, EngineCalls
from .generate_answer import check_finish
from .hedging import Hedging
from .ledger import AttemptLedger
from .observers import MOST_GAPS, DispatchObserver
from .request import NO_TRACE, Attempt, Reply, Request, TakenBack
from .status import OvertakenError


class Relay:
    """Passes messages on. An attempt is booked before, and freed here."""

    def __init__(
        self,
        calls: EngineCalls,
        hedging: Hedging,
        ledger: AttemptLedger,
        monitor: HealthMonitor,
        clock: Clock,
        observer: DispatchObserver,
    ) -> None:
        self._calls = calls
        self._hedging = hedging
        self._ledger = ledger
        self._reports = monitor.reports
        self._now = clock.now
        self._observer = observer

    async def run(
        self,
        request: Request,
        attempt: Attempt,
        reply: Reply,
        metadata: Metadata,
        answers: Answers | None = None,
    ) -> Exception | None:
        """One worker's try. None: it answered. Else the error for the client if no other does.

        The request is booked on entry, freed on return. It is sent, unless `answers` come already.
        """
        ledger, calls, now, on_message = (
            self._ledger,
            self._calls,
            self._now,
            self._observer.on_message,
        )
        put = reply.put if not reply.changes else None
        gaps_s = self._observer.gaps_s if request.facts.sequences == 1 else None

        def take(message: bytes) -> "bytes | None":
            at = now()
            if attempt.taken_back is TakenBack.OVERTAKEN:
                raise OvertakenError(TakenBack.OVERTAKEN.text)
            generated = check_finish(message)
            if gaps_s is None or not attempt.messages or len(gaps_s) >= MOST_GAPS:
                on_message(request, attempt, message, generated, at)
            else:
                gaps_s.append(at - request.last_message_at)
            if not attempt.messages:
                self._on_first_message(request, attempt, message, at)
            attempt.messages += 1
            request.last_message, request.last_message_at = message, at
            attempt.silent_since = None
            if put is not None:
                rest = None if put(message) else message
            else:
                rest = reply.take(message)
            if rest is None:
                attempt.silent_since = at
            return rest

        async def write(message: bytes) -> None:
            await reply.write(message)
            attempt.silent_since = self._now()

        try:
            if answers is None:
                answers = calls.send(request, attempt, metadata)
            if answers is None:
                return calls.failed(request, attempt, Origin.CONNECT, "it has no address")
            await deliver(answers, take, write)
            if attempt.taken_back is TakenBack.OVERTAKEN:
                return calls.taken_back(request, attempt)
            attempt.call = None
            if not attempt.messages:
                return calls.failed(request, attempt, Origin.EMPTY, "it ended without an answer")
            ledger.on_served(request, attempt)
            return None
        except EngineCallError as error:
            return calls.failed_by(request, attempt, error)
        except OvertakenError:
            return calls.taken_back(request, attempt)
        except EndedEarlyError as error:
            details = f"it ended the stream unfinished: {error}"
            return calls.failed(request, attempt, Origin.ENGINE, details)
        except asyncio.CancelledError:
            if answers is None or is_cancelled():
                ledger.on_cancelled(request, attempt, late=calls.is_late(request, attempt))
                raise  # by our client, by its deadline, by our own shutdown or by a time-out
            return calls.taken_back(request, attempt)
        except BaseException:
            self._reports.given_up(attempt.worker_id)
            raise
        finally:
            ledger.on_ended(attempt)
            if request.trace is not NO_TRACE:
                request.trace.attempt_ended(request, attempt)
            if attempt.call is not None and answers is not None:
                await calls.stop(request, attempt, answers)

    def _on_first_message(
        self, request: Request, attempt: Attempt, message: bytes, at: float
    ) -> None:
        if request.first_message_at is None:
            request.first_message_at = at
        self._ledger.on_first_message(request, attempt, message, at)
        if request.hedge is not None:
            self._hedging.drop(request)
