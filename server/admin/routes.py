"""The admin calls over HTTP: POST /workers, POST /workers/{id}/drain, PATCH and DELETE of one, and
POST /reload.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from ...base.errors import UNREADABLE, ConfigError, StatusCode
from ...transport.http1 import HttpCall, HttpError, Routes, answer_json
from .reload import Change, changes_as_json
from .worker_admin import AdminError, WorkerChanges, WorkerStatus

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.FAILED_PRECONDITION: 409,
}
_YES = ("", "1", "true", "yes")

Body = TypeVar("Body")


class _NewWorker(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    weight: float | None = None


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    deadline_s: float | None = None


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    weight: float


class Reload(Protocol):
    """Who reads the settings again."""

    async def reload(self) -> list[Change]:
        """What changed. ConfigError if it cannot be."""
        ...


class ReloadRoute:
    """The route by which settings are read again."""

    def __init__(self, settings: Reload) -> None:
        self._settings = settings

    @property
    def routes(self) -> Routes:
        return {"POST /reload": self._on_reload}

    async def _on_reload(self, call: HttpCall) -> None:
        try:
            changes = await self._settings.reload()
        except ConfigError as error:
            raise HttpError(409, str(error)) from None
        await answer_json(call, changes_as_json(changes))


class AdminRoutes:
    """Routes by which workers are changed."""

    def __init__(self, admin: WorkerChanges) -> None:
        self._admin = admin

    @property
    def routes(self) -> Routes:
        return {
            "POST /workers": self._on_add,
            "POST /workers/{id}/drain": self._on_drain,
            "PATCH /workers/{id}": self._on_change,
            "DELETE /workers/{id}": self._on_remove,
        }

    async def _on_add(self, call: HttpCall) -> None:
        body = _read(call, _NewWorker)
        with _refusals():
            status, new = await self._admin.add(body.url, body.weight)
        await _answer(call, status, 201 if new else 200)

    async def _on_drain(self, call: HttpCall) -> None:
        body = _read(call, _Drain)
        with _refusals():
            status = await self._admin.drain(call.values["id"], body.deadline_s)
        await _answer(call, status, drained=status.drained)

    async def _on_change(self, call: HttpCall) -> None:
        body = _read(call, _Change)
        with _refusals():
            status = await self._admin.set_weight(call.values["id"], body.weight)
        await _answer(call, status)

    async def _on_remove(self, call: HttpCall) -> None:
        force = call.parameters.get("force")
        with _refusals():
            status = await self._admin.remove(
                call.values["id"], force=force is not None and force.lower() in _YES
            )
        await _answer(call, status)


def _read(call: HttpCall, kind: type[Body]) -> Body:
    """The request's body; one that is empty has no fields."""
    try:
        return msgspec.json.decode(call.body or b"{}", type=kind)
    except UNREADABLE as error:
        raise HttpError(400, f"bad body: {error}") from None


async def _answer(call: HttpCall, status: WorkerStatus, code: int = 200, **more: Any) -> None:
    fields = msgspec.to_builtins(status) | more
    shown = {key: value for key, value in fields.items() if value != ""}
    await answer_json(call, shown, status=code)


@contextmanager
def _refusals() -> Iterator[None]:
    """Within: an AdminError becomes the answer of its status."""
    try:
        yield
    except AdminError as error:
        raise HttpError(_HTTP_STATUS.get(error.code, 500), str(error)) from None
