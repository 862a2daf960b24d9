"""Acceptor: what has connected before it closes, and what it leaves."""

import asyncio
import contextlib
import errno
import socket

import pytest

from dynamo_router.transport import acceptor as acceptors
from dynamo_router.transport.acceptor import ACCEPTED_AT_ONCE, Acceptor
from dynamo_router.transport.http2 import Http2Server

MANY = 3 * ACCEPTED_AT_ONCE


@pytest.mark.usefixtures("leaves_nothing")
async def test_a_server_that_stops_takes_all_that_had_connected() -> None:
    """Those that wait in the kernel would be broken off."""
    server = Http2Server()
    port = server.bind("127.0.0.1", 0)
    await server.start({})
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        await server.stop(60)
    assert server.connections_made == MANY


class Exhausted(socket.socket):
    """Listens, where no descriptor is left for a connection."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.usefixtures("leaves_nothing")
async def test_without_descriptors_nothing_is_left_of_an_acceptor_that_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptors, "ACCEPT_AGAIN_S", 0.0)
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    waited: list[OSError] = []
    acceptor = Acceptor(lambda accepted, host: accepted.close(), waited.append)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Exhausted)
        port = acceptor.bind("127.0.0.1", 0)
    acceptor.start()
    for _ in range(2):
        await acceptor.accept_waiting(60)
    acceptor.close()
    assert port and len(waited) == 2
    for _ in range(5):
        await asyncio.sleep(0)
    assert not errors


@pytest.mark.parametrize("error", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.usefixtures("leaves_nothing")
async def test_a_name_may_have_an_address_of_a_family_that_the_system_does_not_have(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` has ::1 in a container without IPv6."""

    class Without(socket.socket):
        def __init__(self, family: int = -1, *more: int, **others: int | None) -> None:
            if family == socket.AF_INET6 and error == errno.EAFNOSUPPORT:
                raise OSError(error, "Address family not supported by protocol")
            super().__init__(family, *more, **others)

        def bind(self, address: object) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(error, "Cannot assign requested address")
            super().bind(address)

    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    found = [six, four]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *name, **more: found)
    acceptor = Acceptor(lambda accepted, host: accepted.close())
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Without)
        port = acceptor.bind("localhost", 0)
        found.remove(four)
        with pytest.raises(OSError):
            Acceptor(lambda accepted, host: accepted.close()).bind("localhost", 0)
    assert port
    acceptor.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_what_can_be_no_name_is_refused_as_a_name_that_is_not_known(host: str) -> None:
    with pytest.raises(socket.gaierror, match="no address or known name"):
        Acceptor(lambda accepted, host: accepted.close()).bind(host, 0)
