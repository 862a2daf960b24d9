"""Access to gRPC methods: who calls is asked before a call's message is read."""

from collections.abc import Iterable
from urllib.parse import unquote

from ...transport.http2 import ServerCall
from ...transport.security import certificate_names
from .access import Access
from .callers import AccessError, set_caller
from .loopback import is_loopback
from .roles import rule_of


class GrpcGuard:
    """Decides about the calls of a server.

    Where callers need not show who they are, the methods of admins are for callers on this machine.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def admit(self, method: str, call: ServerCall) -> None:
        """From now on this task serves the call of its caller; AccessError if they may not."""
        access, rule = self._access, rule_of(method)
        if access.open:
            if rule.admin_listener and not _is_local(call.peer()):
                access.refused["listener"] += 1
                text = "without --auth-tokens this may be called over loopback alone"
                raise AccessError(text, reason="listener", authenticated=True)
        elif not rule.open:
            token = _authorization(call.invocation_metadata())
            names: tuple[str, ...] = ()
            if token is None and access.reads_certificates:
                names = certificate_names(call.certificate())
            set_caller(access.admit(rule, token, names))


def _is_local(peer: str) -> bool:
    """Whether a peer, as gRPC names it, is on this machine: ipv4:HOST:PORT, ipv6:[HOST]:PORT."""
    scheme, _, address = peer.partition(":")
    return scheme == "unix" or is_loopback(unquote(address).rpartition(":")[0])


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The authorization header, which came once at most."""
    return next((str(value) for key, value in metadata if key == "authorization"), None)
