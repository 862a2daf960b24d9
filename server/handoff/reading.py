"""Reading: sees to it that a prompt is read once whose engine keeps it until it is, without an end.

Neither leg of such a pair is ended before its part is done, also without a client. A prompt that
the decode worker refused, so that it is not read for sure, is read by another one, which makes one
token of it. Where it is not known whether a decode worker has read it, none tries again: what an
engine does about one that asks for a prompt twice is nowhere stated. Such a prompt stays with its
engine, and is counted.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from ...base.errors import StatusCode
from ...process.supervised import stopped
from ...workers.channels import EngineCall
from ...workers.dialects import EngineClient, for_reading, handoff_of
from ...workers.failures import EngineCallError, Origin
from ...workers.handoffs import HandoffPlan
from ...workers.trtllm_proto import length_delimited
from .lasting import LastingCall, first_of
from .leg import PrefillLeg
from .leg_answers import is_empty, read, why_refused

log = structlog.get_logger(__name__)

MOST_READERS = 3
"""Decode workers that are asked to read a prompt which the first one has refused."""
LIMIT_FACTOR = 2.0
"""How many times its own limit a leg may take before it is ended although its part is not done."""
_REFUSALS = frozenset(
    (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, StatusCode.NOT_FOUND,
     StatusCode.UNIMPLEMENTED)
)  # fmt: skip


class Readings:
    """Of one pool of decode workers, whose clients `readers` returns. `lost` is called for each
    prompt of which it is not known that it was read."""

    def __init__(
        self, readers: Callable[[], Iterable[EngineClient]], lost: Callable[[], None]
    ) -> None:
        self.readers, self.lost = readers, lost
        self.tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what goes on: its prompts stay where they are."""
        for task in list(self.tasks):
            await stopped(task)


class Reading:
    """Of one attempt, which engines know by `attempt_id`."""

    def __init__(
        self,
        readings: Readings,
        leg: PrefillLeg,
        decode: EngineClient,
        plan: HandoffPlan,
        attempt_id: str,
        limits_s: tuple[float, float],
    ) -> None:
        """`limits_s`: of the prefill, and from its end to the decode worker's first token."""
        self._readings, self._leg, self._decode, self._plan = readings, leg, decode, plan
        self._attempt_id = attempt_id
        self._prefill_s, self._handoff_s = (LIMIT_FACTOR * each for each in limits_s)
        self._parcel = b""

    @property
    def most_s(self) -> float:
        """What the call of a leg may take at least."""
        return max(self._prefill_s, self._handoff_s)

    def prefill(self, call: EngineCall, most_messages: int) -> EngineCall:
        """The prefill worker's call, to be used in its place; it has at most `most_messages`."""
        tasks = self._readings.tasks
        return LastingCall(call, most_messages, self._prefill_s, self._on_computed, tasks)

    def decode(self, call: EngineCall, parcel: bytes) -> EngineCall:
        """The same of the decode worker's, which is sent a parcel."""
        self._parcel = parcel
        return LastingCall(call, 1, self._handoff_s, self._on_read, self._readings.tasks)

    def give_up(self) -> None:
        """There is a parcel, and no decode worker will read it."""
        if self._is_kept():
            self._readings.lost()
            log.warning("prompt is left at its prefill worker", worker=self._leg.worker_id)

    def _is_kept(self) -> bool:
        """Whether its engine is there, be it draining or silent: without it, the prompt is gone as
        well."""
        return self._leg.pool.monitor.engine(self._leg.worker_id) is not None

    async def _is_reachable(self) -> bool:
        """Whether its engine answers its probes, within the time of a reader: one that reads from
        an engine that does not answer would stand still with all its requests."""
        monitor, changed = self._leg.pool.monitor, asyncio.Event()
        monitor.listeners.append(changed.set)
        try:
            async with asyncio.timeout(self._handoff_s):
                while self._is_kept() and not monitor.is_ready(self._leg.worker_id):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            monitor.listeners.remove(changed.set)
        return self._is_kept()

    async def _on_computed(
        self, messages: list[bytes], failure: EngineCallError | None, left: bool
    ) -> None:
        if failure is not None and failure.origin is Origin.SILENCE:
            self.give_up()
        parcel = handoff_of(messages[-1]) if messages and left else None
        if parcel is None:
            return
        if why_refused(parcel, self._leg.address) is None:
            self._parcel = parcel
            await self._read([self._decode])
        else:
            self.give_up()

    async def _on_read(
        self, messages: list[bytes], failure: EngineCallError | None, left: bool
    ) -> None:
        if failure is not None and _is_refused(failure):
            await self._read([])
        elif not messages or is_empty(read(messages[0])):
            self.give_up()

    async def _read(self, first: list[EngineClient]) -> None:
        """Have a decode worker read the prompt that none has read, while its engine is there."""
        others = [each for each in self._readings.readers() if each is not self._decode]
        clients = [*first, *others, *([] if first else [self._decode])]
        for number, client in enumerate(clients[:MOST_READERS]):
            if not await self._is_reachable():
                break
            own_id = length_delimited(1, f"{self._attempt_id}~read{number}".encode())
            request = for_reading(self._plan.decode(self._parcel)) + own_id
            call = client.generate(request, timeout=self._handoff_s)
            try:
                if is_empty(read(await first_of(call, self._handoff_s))):
                    break
            except EngineCallError as error:
                if _is_refused(error):
                    continue
                break
            return
        self.give_up()


def _is_refused(error: EngineCallError) -> bool:
    """Whether a decode worker has read nothing: it was not reached, or did not take the request."""
    return error.origin is Origin.CONNECT or (
        error.origin is Origin.ENGINE and error.code() in _REFUSALS
    )
