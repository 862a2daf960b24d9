"""Calls of RouterService made at a front, which the decider alone can answer."""

import asyncio
import contextvars
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from ...base.errors import UNREADABLE_MESSAGE, RouterError, StatusCode
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import ServerCall
from ..access import Caller, Role, current_account, current_caller, set_account, set_caller
from ..dispatch import status_of
from .link import DeciderAwayError, DeciderLink, refused
from .messages import Answer, Call, Refused, check_content

Metadata = Sequence[tuple[str, str | bytes]]
_KEPT_HERE = ("authorization",)


class RelayedService:
    """The methods of a service as a front has them: whoever calls was checked here."""

    def __init__(self, paths: Iterable[str], link: DeciderLink) -> None:
        self._link = link
        self.methods: Methods = {path: Method(partial(self._relay, path)) for path in paths}

    async def _relay(self, path: str, request: bytes, context: ServerCall) -> bytes:
        link, caller = self._link, current_caller()
        call = Call(
            link.next_serial(),
            path,
            request,
            _told(context.invocation_metadata()),
            caller.name,
            [role.value for role in caller.roles],
            current_account(),
        )
        try:
            check_content(len(request))
            answer = await link.ask(call)
        except DeciderAwayError as error:
            await context.abort(StatusCode.UNAVAILABLE, f"nobody decides now: {error}")
        except RouterError as error:
            await context.abort(*status_of(error))
        except asyncio.CancelledError:
            link.give_up(call)
            raise
        if answer.code:
            await context.abort(StatusCode(answer.code), answer.details)
        message: bytes = answer.message
        return message


def _told(metadata: Metadata) -> list[tuple[str, str]]:
    """What of a call's metadata its method may read: text, and no secret."""
    return [(k, v) for k, v in metadata if isinstance(v, str) and k not in _KEPT_HERE]


class _Aborted(Exception):
    """A method ended its call with a status."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class CarriedCall:
    """A ServerCall whose client is at a front."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return "unix:"

    def time_remaining(self) -> float | None:
        return None  # the front gives it up

    def read_at_once(self) -> bytes | None:
        return None

    async def read(self) -> bytes | None:
        return None

    async def send_initial_metadata(self, metadata: Metadata) -> None: ...

    def set_trailing_metadata(self, metadata: Metadata) -> None: ...

    def put(self, message: bytes) -> bool:
        return False

    async def write(self, message: bytes) -> None:
        raise NotImplementedError("methods with one answer return it")

    async def finish(self) -> None: ...

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        raise _Aborted(code, details)


def answer_carried(methods: Methods, call: Call) -> "asyncio.Task[Answer | Refused]":
    """Have a call answered, as its caller. ValueError if there is no such method."""
    method = methods.get(call.path)
    if method is None:
        raise ValueError(f"there is no method {call.path!r}")
    caller = Caller(call.caller, frozenset(map(Role, call.roles)))
    context = contextvars.copy_context()
    context.run(set_caller, caller)
    context.run(set_account, call.account)
    return asyncio.create_task(_answer(method, call), name="carried-call", context=context)


async def _answer(method: Method, call: Call) -> Answer | Refused:
    try:
        request: Any = call.request
        if method.decode is not None:
            try:
                request = method.decode(call.request)
            except Exception:
                return Answer(call.serial, b"", StatusCode.INVALID_ARGUMENT, UNREADABLE_MESSAGE)
        answering: Awaitable[Any] = method.answer(request, CarriedCall(call.metadata))
        answer = await answering
        message = answer if method.encode is None else method.encode(answer)
        check_content(len(message))
        return Answer(call.serial, message)
    except _Aborted as ended:
        return Answer(call.serial, b"", ended.code, ended.details)
    except RouterError as error:
        return refused(call.serial, error)
