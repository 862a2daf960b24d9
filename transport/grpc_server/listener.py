"""A listening server of gRPC, on either library."""

from collections.abc import Mapping
from typing import Protocol

from ..http2 import ByteBound, ConnectionShare, Http2Server, OnLimit, ServerLimits
from ..security import ServerTls
from .aio_server import AioServer
from .methods import AtOnce, Serve


class GrpcListener(Protocol):
    """Listens from `bind`, answers from `start` until `stop`."""

    def bind(self, host: str, port: int, *, shared: bool = False) -> int:
        """Take the port, 0: a free one; which it is. OSError if it cannot be had. `shared`: with
        other processes of this user, which get a part of the connections each."""
        ...

    async def start(
        self, methods: Mapping[str, Serve], at_once: Mapping[str, AtOnce] | None = None
    ) -> None:
        """Answer, by the paths of methods. `at_once`: shorter ways for some of them, which are
        asked first where the library tells of a message in the turn in which it came."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way end for so long, end the rest. Idempotent, and
        again with a shorter time while it goes on."""
        ...

    async def kill(self) -> None:
        """Be gone at once: connections break."""
        ...


def make_listener(
    limits: ServerLimits,
    tls: ServerTls | None,
    *,
    native: bool,
    share: ConnectionShare | None = None,
    on_limit: OnLimit | None = None,
    input_bound: ByteBound | None = None,
    output_bound: ByteBound | None = None,
) -> GrpcListener:
    """One on nghttp2, if `native`, else on grpc.aio: that counts no connections, nor messages that
    did not come whole or were not read, and tells of no limit that it keeps."""
    if not native:
        return AioServer(limits, tls)
    context = None if tls is None else tls.http2_context()
    hear = on_limit or (lambda limit: None)
    return Http2Server(limits, context, share, hear, input_bound, output_bound)
