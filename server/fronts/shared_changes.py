"""SharedChanges: what admin calls change, changed in all processes of a router."""

import asyncio
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import structlog

from ...base.errors import RouterError, StatusCode
from ..admin import AdminError, ShownWorkers, WorkerStatus, check_deadline
from .siblings import ASK_TIMEOUT_S, Siblings

ADD_TIMEOUT_S = 5.0
"""A new worker is asked who it is before the call is answered."""
MAX_KEPT = 10_000
"""Changes that a process started later catches up with."""

log = structlog.get_logger(__name__)


class Limits(Protocol):
    """Busy thresholds."""

    def change(self, **thresholds: Any) -> object: ...


class _Call(msgspec.Struct, array_like=True, frozen=True):
    action: str
    worker: str = ""
    weight: float | None = None
    deadline_s: float | None = None
    force: bool = False
    thresholds: dict[str, Any] = {}


class _Result(msgspec.Struct, array_like=True):
    error: str = ""
    in_flight: int = 0


class SharedChanges:
    """Admin calls for workers, and changes of busy thresholds, made here and at the siblings.

    A call that this process refuses reaches no other one. What a sibling did not do is a warning in
    the answer. Workers go by their addresses: their ids are known once they have answered.
    """

    def __init__(self, admin: ShownWorkers, limits: Limits | None, siblings: Siblings) -> None:
        """`limits`: None where busy thresholds are those of each pool."""
        self._admin, self._limits, self._siblings = admin, limits, siblings
        self._calls: dict[bytes, _Call] = {}  # those made, the last ones last
        siblings.answer("Change", _Call, self._answer)
        siblings.answer("Changes", type(None), self._kept)

    async def catch_up(self) -> None:
        """Make the calls that siblings had made before this process began."""
        found = await self._siblings.first("Changes", None, list[_Call], bool)
        for call in found or ():
            await self._answer(call)

    async def add(self, url: str, weight: float | None = None) -> tuple[WorkerStatus, bool]:
        """See WorkerChanges; so are the calls below."""
        call = _Call("add", url, weight)
        status, new = await self._admin.add(url, weight)
        return await self._everywhere(call, status, ADD_TIMEOUT_S), new

    async def drain(self, name: str, deadline_s: float | None = None) -> WorkerStatus:
        if not self._siblings.others:
            return await self._admin.drain(name, deadline_s)
        check_deadline(deadline_s)
        address = (await self._admin.drain(name)).address  # an error reaches no sibling
        here = asyncio.create_task(self._admin.drain(address, deadline_s))
        call = _Call("drain", address, deadline_s=deadline_s)
        try:
            answers = await self._ask_others(call, ASK_TIMEOUT_S + (deadline_s or 0.0))
            return _with_results(await here, answers)
        finally:
            here.cancel()

    async def remove(self, name: str, *, force: bool = False) -> WorkerStatus:
        if not force:
            shown = _Call("show", self._admin.show(name).address)
            counts = await self._siblings.ask_all("Change", shown, _Result)
            elsewhere = sum(each.in_flight for each in counts.values() if each is not None)
            if elsewhere:
                raise AdminError(
                    StatusCode.FAILED_PRECONDITION,
                    f"worker {name} has {elsewhere} requests in flight in other processes: drain"
                    " it first, or use force",
                )
        status = await self._admin.remove(name, force=force)
        return await self._everywhere(_Call("remove", status.address, force=force), status)

    async def set_weight(self, name: str, weight: float) -> WorkerStatus:
        status = await self._admin.set_weight(name, weight)
        return await self._everywhere(_Call("weight", status.address, weight), status)

    async def change_limits(self, thresholds: dict[str, Any]) -> None:
        """Change busy thresholds. RouterError if they are not valid."""
        self._change_limits(thresholds)
        await self._ask_others(_Call("thresholds", thresholds=thresholds))

    async def _everywhere(
        self, call: _Call, status: WorkerStatus, timeout_s: float = ASK_TIMEOUT_S
    ) -> WorkerStatus:
        return _with_results(status, await self._ask_others(call, timeout_s))

    async def _ask_others(
        self, call: _Call, timeout_s: float = ASK_TIMEOUT_S
    ) -> dict[int, _Result | None]:
        self._keep(call)
        return await self._siblings.ask_all("Change", call, _Result, timeout_s)

    async def _answer(self, call: _Call) -> _Result:
        """Make a sibling's call here."""
        try:
            status = await self._make(call)
        except RouterError as error:
            return _Result(str(error))
        if call.action != "show":
            self._keep(call)
        return _Result("", 0 if status is None else status.in_flight)

    async def _make(self, call: _Call) -> WorkerStatus | None:
        match call.action:
            case "add":
                return (await self._admin.add(call.worker, call.weight))[0]
            case "drain":
                return await self._admin.drain(call.worker, call.deadline_s)
            case "remove":
                return await self._admin.remove(call.worker, force=call.force)
            case "weight" if call.weight is not None:
                return await self._admin.set_weight(call.worker, call.weight)
            case "show":
                return self._admin.show(call.worker)
            case "thresholds":
                self._change_limits(call.thresholds)
        return None

    def _change_limits(self, thresholds: dict[str, Any]) -> None:
        if self._limits is not None:
            self._limits.change(**thresholds)

    def _keep(self, call: _Call) -> None:
        if not self._siblings.others:
            return
        kept = msgspec.structs.replace(call, deadline_s=None)
        key = msgspec.msgpack.encode(kept)
        self._calls.pop(key, None)
        self._calls[key] = kept
        while len(self._calls) > MAX_KEPT:
            del self._calls[next(iter(self._calls))]

    async def _kept(self, _: None) -> list[_Call]:
        return list(self._calls.values())


def _with_results(status: WorkerStatus, results: dict[int, _Result | None]) -> WorkerStatus:
    """The status of a worker here and elsewhere."""
    warnings = [status.warning] if status.warning else []
    in_flight = status.in_flight
    for number, result in results.items():
        if result is None:
            warnings.append(f"front {number} does not answer")
        elif result.error:
            warnings.append(f"front {number}: {result.error}")
        else:
            in_flight += result.in_flight
    return replace(status, in_flight=in_flight, warning="; ".join(warnings))
