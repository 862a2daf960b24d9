"""CheckedCalls: every gRPC call is checked before its message is read, and counted while it lasts.

Servers bound calls by dropping them without a count, so their own limits are set beyond ours.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from ...base.account import account_of
from ...base.errors import UNREADABLE_MESSAGE, CapacityError, RouterError, StatusCode
from ...base.shared_bound import SharedBound
from ...transport.grpc_methods import AnswerAtOnce, Method, answer_call
from ...transport.http2 import AtOnce, ServerCall, encode_metadata
from ...workers.channels import Metadata
from ..access import AccessError, GrpcGuard, current_caller, set_account
from ..call_limits import CallLimits
from ..dispatch import MAX_DECODED_BYTES, retry_metadata, status_of

_INVALID = StatusCode.INVALID_ARGUMENT


def _unheard(path: str, who: str, status: str, why: str) -> None:
    pass


class _CallRefused(Exception):  # noqa: N818 - it is how a call is ended, and no error
    def __init__(
        self, code: StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(details)
        self.code, self.details, self.trailing = code, details, trailing


class CheckedCalls:
    """Asks who calls, then whether there is capacity for the call; then its method answers."""

    def __init__(
        self,
        guard: GrpcGuard,
        calls: CallLimits,
        on_refused: Callable[[str, str, str, str], None] = _unheard,
    ) -> None:
        """`on_refused` is called once for each call that is refused before its method has it: its
        path, its client, the status and why."""
        self._guard, self._calls, self._on_refused = guard, calls, on_refused

    def serving(self, path: str, method: Method) -> Any:
        """How the calls of a method are served."""
        calls, bound = self._calls, self._calls.bound_of(path)
        answer = self._answer_stream if method.streams else self._answer

        async def serve(call: ServerCall) -> None:
            try:
                caller = self._caller(path, call)
                refusal = bound.take(caller)
                if refusal is not None:
                    raise _no_capacity(calls, bound, refusal)
            except _CallRefused as error:
                if error.code is StatusCode.UNAUTHENTICATED:
                    self._note(path, call, error)
                    call.refuse(error.code, error.details)
                    return
                await self._refuse(path, call, error)
            try:
                set_account(caller)
                await answer(path, method, caller, call)
            finally:
                bound.give_back(caller)

        return serve

    def serving_at_once(self, path: str, answer: AnswerAtOnce) -> AtOnce:
        """The same within one turn, of calls that nothing holds up. Those whose answers wait for
        their clients to read count from then on; one that finds no room is given up."""
        calls, bound = self._calls, self._calls.bound_of(path)

        def serve(call: ServerCall, message: bytes) -> bool:
            try:
                call.payer = caller = self._caller(path, call)
                # It is mostly over before another one begins: there is nothing to give back.
                refusal = bound.refusal(caller) or calls.bytes.refusal(caller, len(message))
                if refusal is not None:
                    raise _no_capacity(calls, bound, refusal)
                set_account(caller)
                found = answer(message, call.invocation_metadata())
            except _CallRefused as error:
                self._note(path, call, error)
                if error.code is StatusCode.UNAUTHENTICATED:
                    call.refuse(error.code, error.details)
                else:
                    call.end(error.code, error.details, encode_metadata(error.trailing))
            except RouterError as error:
                code, text = status_of(error)
                call.end(code, text, encode_metadata(retry_metadata(error)))
            else:
                if found is None:
                    return False
                call.answer(found)
            return True

        async def finish(call: ServerCall) -> None:
            # It is not asked who calls once more: a refusal would count twice.
            caller = call.payer or account_of(call.peer())
            if (refusal := bound.take(caller)) is not None:
                why = f"no room for the call while its client reads its answer: {refusal}"
                self._on_refused(path, account_of(call.peer()), "RESOURCE_EXHAUSTED", why)
                call.give_up()
                return
            try:
                await call.finish()
            finally:
                bound.give_back(caller)

        return AtOnce(serve, finish)

    def _caller(self, path: str, call: ServerCall) -> str:
        """Who a call is charged to; _CallRefused if it is refused."""
        try:
            self._guard.admit(path, call)
        except AccessError as error:
            known = error.authenticated
            code = StatusCode.PERMISSION_DENIED if known else StatusCode.UNAUTHENTICATED
            raise _CallRefused(code, str(error)) from None
        calls, metadata = self._calls, call.invocation_metadata()
        if metadata and _size_of(metadata) > calls.max_metadata_bytes:
            calls.hits.hit("max_metadata_bytes")
            refused = _no_capacity(calls, calls.bound_of(path), "its metadata is too long")
            refused.trailing = ()  # nor is there room later
            raise refused
        return current_caller().name or account_of(call.peer())

    async def _answer(self, path: str, method: Method, caller: str, call: ServerCall) -> None:
        calls = self._calls
        message = call.read_at_once()  # it mostly is there: a time-out would cost more than that
        if message is None:
            message = await self._read(path, call)
        size = len(message)
        refusal = calls.bytes.take(caller, size)
        if refusal is not None:
            await self._refuse(path, call, _no_capacity(calls, calls.bound_of(path), refusal))
        try:
            request: Any = message
            if method.decode is not None:
                request = await self._decoded(path, method, message, call)
            call.taken = True
            await answer_call(method, request, call)
        finally:
            if size:
                calls.bytes.give_back(caller, size)

    async def _answer_stream(
        self, path: str, method: Method, caller: str, call: ServerCall
    ) -> None:
        """The same for a method that takes a stream. What it decodes itself it also counts."""

        async def requests() -> AsyncIterator[Any]:
            while (message := await call.read()) is not None:
                if method.decode is None:
                    yield message
                else:
                    yield await self._decoded(path, method, message, call)
                await asyncio.sleep(0)  # others have their turn, however many came in one piece

        call.taken = True
        await answer_call(method, requests(), call)

    async def _read(self, path: str, call: ServerCall) -> bytes:
        """The call's message as it came."""
        calls, message = self._calls, None
        try:
            async with asyncio.timeout(calls.message_timeout_s):
                message = await call.read()
        except TimeoutError:
            calls.hits.hit("message_timeout_s")
            late = _CallRefused(StatusCode.DEADLINE_EXCEEDED, "the call's message did not come")
            await self._refuse(path, call, late)
        if message is None:
            await self._refuse(path, call, _CallRefused(_INVALID, "the call has no message"))
        return message

    async def _decoded(self, path: str, method: Method, message: bytes, call: ServerCall) -> Any:
        assert method.decode is not None
        if len(message) > MAX_DECODED_BYTES:
            self._calls.hits.hit("decoded_bytes")
            text = f"a message of {len(message)} bytes is too long for this method"
            await self._refuse(path, call, _CallRefused(_INVALID, text))
        try:
            return method.decode(message)
        except Exception:
            await self._refuse(path, call, _CallRefused(_INVALID, UNREADABLE_MESSAGE))

    async def _refuse(self, path: str, call: ServerCall, error: _CallRefused) -> NoReturn:
        self._note(path, call, error)
        await call.abort(error.code, error.details, error.trailing)

    def _note(self, path: str, call: ServerCall, error: _CallRefused) -> None:
        if not call.ended:  # else it was noted, or its client has left
            self._on_refused(path, account_of(call.peer()), error.code.name, error.details)


def _size_of(metadata: Metadata) -> int:
    return sum(len(key) + len(value) for key, value in metadata)


def _no_capacity(calls: CallLimits, bound: SharedBound, why: str) -> _CallRefused:
    if bound is calls.requests:
        calls.on_request_refused()
    error = CapacityError(f"no room for the call: {why}")
    return _CallRefused(*status_of(error), retry_metadata(error))
