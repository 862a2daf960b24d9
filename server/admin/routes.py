"""The admin calls over HTTP: POST /workers, POST /workers/{id}/drain, PATCH and DELETE of one, and
POST /reload.
"""

from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from ...base.errors import ConfigError, StatusCode
from ...transport.http_site import json_response
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


class AdminRoutes:
    """Routes for the HTTP server, which guards them."""

    def __init__(self, admin: WorkerChanges, settings: Reload) -> None:
        self._admin, self._settings = admin, settings

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/workers", self._on_add),
            web.post("/workers/{id}/drain", self._on_drain),
            web.patch("/workers/{id}", self._on_change),
            web.delete("/workers/{id}", self._on_remove),
            web.post("/reload", self._on_reload),
        ]

    async def _on_add(self, request: web.Request) -> web.Response:
        try:
            body = await _read(request, _NewWorker)
            status, new = await self._admin.add(body.url, body.weight)
        except AdminError as error:
            return _refusal(error)
        return _answer(status, 201 if new else 200)

    async def _on_drain(self, request: web.Request) -> web.Response:
        try:
            body = await _read(request, _Drain)
            status = await self._admin.drain(request.match_info["id"], body.deadline_s)
        except AdminError as error:
            return _refusal(error)
        return _answer(status, drained=status.drained)

    async def _on_change(self, request: web.Request) -> web.Response:
        try:
            body = await _read(request, _Change)
            status = await self._admin.set_weight(request.match_info["id"], body.weight)
        except AdminError as error:
            return _refusal(error)
        return _answer(status)

    async def _on_remove(self, request: web.Request) -> web.Response:
        force = request.query.get("force")
        try:
            status = await self._admin.remove(
                request.match_info["id"], force=force is not None and force.lower() in _YES
            )
        except AdminError as error:
            return _refusal(error)
        return _answer(status)

    async def _on_reload(self, request: web.Request) -> web.Response:
        try:
            changes = await self._settings.reload()
        except ConfigError as error:
            return json_response({"error": str(error)}, 409)
        return json_response(changes_as_json(changes))


async def _read(request: web.Request, kind: type[Body]) -> Body:
    """The request's body; one that is empty has no fields."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise AdminError(StatusCode.INVALID_ARGUMENT, f"bad body: {error}") from None


def _answer(status: WorkerStatus, code: int = 200, **more: Any) -> web.Response:
    said = msgspec.to_builtins(status) | more
    return json_response({key: value for key, value in said.items() if value != ""}, code)


def _refusal(error: AdminError) -> web.Response:
    return json_response({"error": str(error)}, _HTTP_STATUS.get(error.code, 500))
