"""Migrations: streams that lost their worker in mid-stream, taken on to another one."""

from collections import Counter
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from ...base.errors import InvalidRequestError
from ...router.placement import Placement
from ...workers.health import HealthMonitor
from ..migration import CarriedStream, EndedEarlyError, RefusedMove, failure_moves, why_fixed
from .generate_request import GenerateFacts
from .request import Attempt, Request
from .request_reader import RequestReader

log = structlog.get_logger(__name__)


class Migrations:
    """At most `limit` moves of each stream; 0: a stream ends with its worker.

    What a request asks is decided in server/migration; here is what the dispatcher does with it.
    """

    def __init__(self, limit: int, monitor: HealthMonitor, reader: RequestReader) -> None:
        self.limit = limit
        self._monitor = monitor
        self._reader = reader
        self.moved: Counter[str] = Counter()
        """streams that went on elsewhere, by the cause of the failure"""
        self.refused: Counter[RefusedMove] = Counter()
        """streams that ended with a worker while migration was on, and why"""

    def stream_of(
        self, body: bytes, facts: GenerateFacts, placement: Placement
    ) -> CarriedStream | None:
        """The stream of a request that may move; None: it may not."""
        if not facts.streaming or facts.sequences > 1 or placement.pinned:
            return None
        return CarriedStream(body, placement.request_id)

    def take(self, request: Request, message: bytes) -> bytes:
        """Note a message that goes to the client; as the client is to get it."""
        assert request.stream is not None
        try:
            return request.stream.take(message)
        except EndedEarlyError:
            if not request.aborted:
                raise
            return message

    async def move(
        self,
        request: Request,
        attempt: Attempt,
        stops_held: bool,
        has_budget: Callable[[Request], bool],
    ) -> bool:
        """After a failure in mid-stream: let the request ask for the rest of its answer. False if
        it cannot; where nothing is left to ask for, its stream's body is empty.
        """
        refusal, stream = self._refusal(request, attempt, stops_held), request.stream
        if refusal is not None or stream is None:
            self.refused[refusal or RefusedMove.REQUEST] += 1
            return False
        body = stream.move()
        if body is not None and not has_budget(request):
            self.refused[RefusedMove.BUDGET] += 1
            return False
        placement = request.placement
        prompt, unfit, expected = placement.prompt, placement.excluded, None
        if body is not None:
            try:
                facts = await self._reader.generate(body)
            except InvalidRequestError:  # it has become too long
                self.refused[RefusedMove.REQUEST] += 1
                return False
            prompt, expected = facts.prompt, facts.max_tokens or None
            unfit, why_not = self._monitor.limits.check(
                prompt.isl, facts.largest_token, facts.max_tokens
            )
            if why_not is not None:
                self.refused[RefusedMove.REQUEST] += 1
                return False
        last = request.failures.last
        self.moved[last.verdict.cause] += 1
        log.info(
            "a stream goes on at another worker",
            request_id=request.request_id[:200],
            worker_id=last.worker_id,
            cause=last.verdict.cause,
            tokens=stream.delivered,
        )
        stream.go_on(body)
        failures = request.failures
        # A token of its prefill worker says nothing of those that failed to go on from it.
        failed = failures.worker_ids if attempt.is_unanswered else failures.begin_anew()
        request.placement = replace(
            placement,
            prompt=prompt,
            excluded=unfit | failed,
            expected_output_tokens=expected,
        )
        return True

    def on_no_worker(self, request: Request) -> None:
        """No worker is left for a further attempt."""
        self._on_stuck(request, RefusedMove.NO_WORKER)

    def on_given_up(self, request: Request) -> None:
        """There is no further attempt: of its last failure's kind, or for want of budget."""
        may_go_on = request.failures.may_go_on
        self._on_stuck(request, RefusedMove.BUDGET if may_go_on else RefusedMove.FAILURE)

    def _on_stuck(self, request: Request, why: RefusedMove) -> None:
        """A stream that moved ends before its next worker has answered."""
        if request.moves:
            self.refused[why] += 1

    def settle(self, request: Request) -> None:
        """The request ended: let its last message be that of the whole answer."""
        stream = request.stream
        if stream is not None and stream.moves and stream.last:
            request.last_message = stream.last

    def _refusal(self, request: Request, attempt: Attempt, stops_held: bool) -> RefusedMove | None:
        stream = request.stream
        if stream is None or not failure_moves([each.verdict for each in request.failures]):
            return RefusedMove.FAILURE
        if stream.last:  # no client expects a second one
            return RefusedMove.FAILURE
        if attempt.is_unanswered and request.failures.is_deadly:
            return RefusedMove.FAILURE
        if stream.moves >= self.limit:
            return RefusedMove.LIMIT
        _ = stream.delivered  # reads what was not read yet
        if not stream.is_readable or why_fixed(stream.read_request(), stops_held=stops_held):
            return RefusedMove.REQUEST
        return None
