"""One attempt: a request to one worker, and its answer back to the client."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import cast

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...process.supervised import is_cancelled
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...workers.channels import Metadata, deliver
from ...workers.dialects import EngineCall, EngineClient, rank_metadata
from ...workers.failures import EngineCallError, Origin
from ...workers.health import HealthMonitor
from ..migration import EndedEarlyError
from ..prefetch import Prefetcher
from .ledger import AttemptLedger
from .observers import DispatchObserver
from .reply import Reply
from .request import NO_TRACE, Aborts, Flight, TakenBack
from .status import OvertakenError

CLOCK_SLACK_S = 0.05
"""A call that ends by its deadline may do so that much before we think it should."""


@dataclass(slots=True)
class Sent:
    """A request that is with a worker. `running`: it is there still, as far as we know."""

    client: EngineClient
    call: EngineCall
    answers: AsyncGenerator[bytes, None]
    running: bool = True


class Relay:
    """Sends requests and passes messages on. An attempt is booked before, and freed here."""

    def __init__(
        self,
        router: KvRouter,
        monitor: HealthMonitor,
        clock: Clock,
        ledger: AttemptLedger,
        observer: DispatchObserver,
        aborts: Aborts,
    ) -> None:
        self._router = router
        self._monitor = monitor
        self._now = clock.now
        self._ledger = ledger
        self._observer = observer
        self._aborts = aborts
        self.prefetcher = Prefetcher(router, monitor)
        self.on_begun: Callable[[Flight], None] | None = None
        """hears of a flight whose first message came, if it has or plans a hedge"""

    def send(self, flight: Flight, decision: Decision, metadata: Metadata) -> Sent | None:
        """Begin an attempt; None if its worker has no address any more."""
        worker_id = decision.worker.worker_id
        client = flight.client = self._monitor.client(worker_id)
        if client is None:
            return None
        entry = self._router.registry.entry(worker_id)
        if entry is not None and entry.dp_size > 1:
            metadata = (*metadata, *rank_metadata(entry, decision.worker.dp_rank))
        self._ledger.on_sent(flight, decision)
        if flight.trace is not NO_TRACE:
            metadata = flight.trace.sent(flight, metadata)
        self.prefetcher.on_sent(flight, decision)
        left = None if flight.deadline == math.inf else flight.deadline - flight.sent_at
        call = flight.call = client.generate(flight.body, timeout=left, metadata=metadata)
        return Sent(client, call, cast("AsyncGenerator[bytes, None]", aiter(call)))

    async def run(
        self,
        flight: Flight,
        decision: Decision,
        reply: Reply,
        metadata: Metadata,
        sent: Sent | None = None,
    ) -> Exception | None:
        """One worker's try. None: it answered. Else what to tell the client if nobody else does.

        The request is booked on entry, freed on return. It is sent, if it was not before.
        """
        ledger, worker_id = self._ledger, decision.worker.worker_id

        def take(message: bytes) -> bytes | None:
            self._on_message(flight, message)
            rest = reply.take(message)
            flight.writing = rest is not None
            return rest

        async def write(message: bytes) -> None:
            await reply.write(message)
            flight.since, flight.writing = self._now(), False

        try:
            if sent is None:
                sent = self.send(flight, decision, metadata)
            if sent is None:
                return self.failed(flight, Origin.CONNECT, "it has no address")
            await deliver(sent.answers, take, write)
            if flight.taken_back is TakenBack.OVERTAKEN:
                return self.taken_back(flight)
            sent.running = False
            if not flight.messages:
                return self.failed(flight, Origin.EMPTY, "it ended without an answer")
            ledger.on_served(flight)
            return None
        except EngineCallError as error:
            assert sent is not None
            return self.failed_by(flight, sent, error)
        except OvertakenError:
            return self.taken_back(flight)
        except EndedEarlyError as error:
            return self.failed(flight, Origin.ENGINE, f"it ended the stream unfinished: {error}")
        except asyncio.CancelledError:
            if sent is None or is_cancelled():
                ledger.on_cancelled(flight, worker_id, late=self.is_late(flight))
                raise  # by our client, by its deadline, by our own shutdown or by a time-out
            return self.taken_back(flight)
        except BaseException:
            self._monitor.reports.given_up(worker_id)
            raise
        finally:
            ledger.on_ended(flight)
            if flight.trace is not NO_TRACE:
                flight.trace.attempt_ended(flight)
            if sent is not None and sent.running:
                await self.stop(flight, sent)

    def _on_message(self, flight: Flight, message: bytes) -> None:
        """Note a message before its client gets it; OvertakenError if another worker's come."""
        at = self._now()
        if flight.taken_back is TakenBack.OVERTAKEN:
            raise OvertakenError(flight.taken_back.text)
        self._observer.on_message(flight, message, at)
        if not flight.messages:
            if not flight.moves:
                flight.first_message_at = at
            self._ledger.on_first_message(flight, message, at)
            if flight.hedging:
                assert self.on_begun is not None
                self.on_begun(flight)
        flight.messages += 1
        flight.last_message, flight.last_message_at = message, at
        flight.since = at

    # How an attempt ends, also that of a hedge

    def failed(self, flight: Flight, origin: Origin, said: str) -> Exception:
        """There was no answer, nor a status that says why."""
        code = StatusCode.OK if origin is Origin.EMPTY else StatusCode.UNAVAILABLE
        return self._ledger.on_failed(flight, origin, code, said)

    def failed_by(self, flight: Flight, sent: Sent, error: EngineCallError) -> Exception:
        """Its call ended with a status."""
        sent.running = False
        origin, details = error.origin, error.details()
        if error.code() is StatusCode.DEADLINE_EXCEEDED and self.is_late(flight):
            origin = Origin.DEADLINE
        return self._ledger.on_failed(flight, origin, error.code(), details, error)

    def taken_back(self, flight: Flight) -> Exception:
        """Its call was cancelled, and not because its client went away."""
        code, why = StatusCode.CANCELLED, flight.taken_back
        if why is TakenBack.OVERTAKEN:
            assert flight.decision is not None
            self._monitor.reports.given_up(flight.decision.worker.worker_id)
            return OvertakenError(why.text)
        if why is None:  # its channel was closed
            return self._ledger.on_failed(flight, Origin.WORKER_DOWN, code, "it was removed")
        return self._ledger.on_failed(flight, why.origin, code, why.text)

    async def stop(self, flight: Flight, sent: Sent) -> None:
        """Have the worker stop what still runs there, as far as we know."""
        sent.running = False
        sent.call.cancel()
        self._aborts.send(sent.client, flight.request_id)
        # A generator, which must not be left to the collector.
        await sent.answers.aclose()

    def is_late(self, flight: Flight) -> bool:
        """Whether its time is over: its client's deadline, or a limit of ours."""
        if flight.taken_back in (TakenBack.WRITE, TakenBack.TOTAL):
            return True
        return self._now() >= flight.deadline - CLOCK_SLACK_S
