"""CheckedCalls: every gRPC call is checked before its message is read, and counted while it lasts.

Servers bound calls by dropping them without a count, so their own limits are set beyond ours.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

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


class _CallRefused(Exception):  # noqa: N818 - it is how a call is ended, and no error
    def __init__(
        self, code: StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(details)
        self.code, self.details, self.trailing = code, details, trailing


class CheckedCalls:
    """Asks who calls, then whether there is capacity for the call; then its method answers."""

    def __init__(self, guard: GrpcGuard, calls: CallLimits) -> None:
        self._guard, self._calls = guard, calls

    def serving(self, path: str, method: Method) -> Any:
        """How the calls of a method are served."""
        calls, bound = self._calls, self._calls.bound_of(path)
        answer = _answer_stream if method.streams else _answer

        async def serve(call: ServerCall) -> None:
            try:
                caller = self._caller(path, call)
                refusal = bound.take(caller)
                if refusal is not None:
                    raise _no_capacity(calls, bound, refusal)
            except _CallRefused as error:
                if error.code is StatusCode.UNAUTHENTICATED:
                    call.refuse(error.code, error.details)
                    return
                await call.abort(error.code, error.details, error.trailing)
            try:
                set_account(caller)
                await answer(method, calls, bound, caller, call)
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
            if bound.take(caller) is not None:
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


async def _answer(
    method: Method, calls: CallLimits, bound: SharedBound, caller: str, call: ServerCall
) -> None:
    message = call.read_at_once()  # it mostly is there: a time-out would cost more than to read it
    if message is None:
        message = await _read(calls, call)
    size = len(message)
    refusal = calls.bytes.take(caller, size)
    if refusal is not None:
        refused = _no_capacity(calls, bound, refusal)
        await call.abort(refused.code, refused.details, refused.trailing)
    try:
        request: Any = message
        if method.decode is not None:
            request = await _decoded(calls, method, message, call)
        await answer_call(method, request, call)
    finally:
        if size:
            calls.bytes.give_back(caller, size)


async def _answer_stream(
    method: Method, calls: CallLimits, bound: SharedBound, caller: str, call: ServerCall
) -> None:
    """The same for a method that takes a stream. What it decodes itself it also counts."""

    async def requests() -> AsyncIterator[Any]:
        while (message := await call.read()) is not None:
            yield message if method.decode is None else await _decoded(calls, method, message, call)
            await asyncio.sleep(0)  # others have their turn, however many came in one piece

    await answer_call(method, requests(), call)


def _size_of(metadata: Metadata) -> int:
    return sum(len(key) + len(value) for key, value in metadata)


def _no_capacity(calls: CallLimits, bound: SharedBound, why: str) -> _CallRefused:
    if bound is calls.requests:
        calls.on_request_refused()
    error = CapacityError(f"no room for the call: {why}")
    return _CallRefused(*status_of(error), retry_metadata(error))


async def _read(calls: CallLimits, call: ServerCall) -> bytes:
    """The call's message as it came."""
    try:
        async with asyncio.timeout(calls.message_timeout_s):
            message = await call.read()
    except TimeoutError:
        calls.hits.hit("message_timeout_s")
        text = "the call's message did not come"
        await call.abort(StatusCode.DEADLINE_EXCEEDED, text)
    if message is None:
        await call.abort(_INVALID, "the call has no message")
    return message


async def _decoded(calls: CallLimits, method: Method, message: bytes, call: ServerCall) -> Any:
    assert method.decode is not None
    if len(message) > MAX_DECODED_BYTES:
        calls.hits.hit("decoded_bytes")
        text = f"a message of {len(message)} bytes is too long for this method"
        await call.abort(_INVALID, text)
    try:
        return method.decode(message)
    except Exception:
        await call.abort(_INVALID, UNREADABLE_MESSAGE)
