"""Access to gRPC methods: handlers that ask who calls before they serve. `serve` puts them around
all services of the gRPC server."""

import inspect
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import unquote

import grpc
from grpc import aio

from .access import Access
from .callers import AccessError, Caller, set_caller
from .page_check import is_loopback
from .roles import Rule, rule_of

Context = aio.ServicerContext[Any, Any]


class GuardedServer:
    """Stands for a grpc.aio server where services are added to it: their handlers are guarded."""

    def __init__(self, server: aio.Server, access: Access) -> None:
        self._server, self._access = server, access

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        kind: Any = OpenHandlers if self._access.open else GuardedHandlers
        guarded = tuple(kind(inner, self._access) for inner in handlers)
        self._server.add_generic_rpc_handlers(guarded)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Nothing: generated code calls this too, for a server without asyncio."""


class OpenHandlers(grpc.GenericRpcHandler):
    """The methods of one service where nobody is asked who they are: those of admins are for
    callers on this machine, others get PERMISSION_DENIED.
    """

    def __init__(self, inner: Any, access: Access) -> None:
        self._inner, self._access = inner, access

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = self._inner.service(handler_call_details)
        if handler is None or not rule_of(str(handler_call_details.method)).admin_listener:
            return handler

        async def admit(context: Context) -> None:
            if not _is_local(str(cast(Any, context).peer())):
                self._access.refused["listener"] += 1
                text = "without --auth-tokens this may be called over loopback alone"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)

        return _before(handler, admit)


def _is_local(peer: str) -> bool:
    """Whether a peer, as gRPC names it, is on this machine: ipv4:HOST:PORT, ipv6:[HOST]:PORT."""
    scheme, _, address = peer.partition(":")
    return scheme == "unix" or is_loopback(unquote(address).rpartition(":")[0])


class GuardedHandlers(grpc.GenericRpcHandler):
    """The methods of one service. A caller without a right to a method gets UNAUTHENTICATED or
    PERMISSION_DENIED, before its request is decoded where its token alone decides.
    """

    def __init__(self, inner: Any, access: Access) -> None:
        self._inner, self._access = inner, access

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        rule = rule_of(str(handler_call_details.method))
        if rule.open:
            return handler
        token = _authorization(cast(Any, handler_call_details.invocation_metadata))
        if token is None and self._access.reads_certificates:
            return _guarded(handler, self._access, rule)
        try:
            return _served_for(handler, self._access.admit(rule, token))
        except AccessError as error:
            return _refused(error)


def _authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The authorization header; of several, none that could be believed."""
    found = [str(value) for key, value in metadata or () if key == "authorization"]
    return found[0] if len(found) == 1 else "" if found else None


def certificate_names(context: Context) -> tuple[str, ...]:
    """The names in the certificate that the peer showed: its common name, then the others."""
    auth = cast(Any, context).auth_context()
    keys = ("x509_common_name", "x509_subject_alternative_name", "peer_uri")
    names = [name.decode("utf-8", "replace") for key in keys for name in auth.get(key, ())]
    return tuple(dict.fromkeys(names))


def _served_for(handler: Any, caller: Caller) -> Any:
    """A handler of calls whose caller is known."""

    async def admit(context: Context) -> None:
        set_caller(caller)

    return _before(handler, admit)


def _guarded(handler: Any, access: Access, rule: Rule) -> Any:
    """A handler of calls whose caller is known by the connection's certificate."""

    async def admit(context: Context) -> None:
        try:
            set_caller(access.admit(rule, None, certificate_names(context)))
        except AccessError as error:
            await _abort(context, error)

    return _before(handler, admit)


def _refused(error: AccessError) -> Any:
    """A handler that refuses every call. One of streams: of a method with a single message gRPC
    would read that first.
    """

    async def refuse(_: Any, context: Context) -> None:
        await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(cast(Any, refuse))


async def _abort(context: Context, error: AccessError) -> None:
    code = grpc.StatusCode.UNAUTHENTICATED
    if error.authenticated:
        code = grpc.StatusCode.PERMISSION_DENIED
    await context.abort(code, str(error))


def _before(handler: Any, admit: Any) -> Any:
    """The handler, with `admit(context)` run before its behaviour."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    (kind,) = (kind for kind in kinds if getattr(handler, kind) is not None)
    inner = getattr(handler, kind)
    if inspect.isasyncgenfunction(inner):

        async def generate(request: Any, context: Context) -> Any:
            await admit(context)
            async for message in inner(request, context):
                yield message

        return handler._replace(**{kind: generate})

    async def answer(request: Any, context: Context) -> Any:
        await admit(context)
        return await inner(request, context)

    return handler._replace(**{kind: answer})
