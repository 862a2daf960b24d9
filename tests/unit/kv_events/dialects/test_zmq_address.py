"""What is said of an address at which no publisher is heard."""

import asyncio
from pathlib import Path

import pytest
import zmq
from support.free_port import free_port

from dynamo_router.kv_events.dialects import zmq_address
from dynamo_router.kv_events.dialects.zmq_address import why_unheard


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_address, "TRY_S", 0.5)


async def test_nothing_listens() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    why = await why_unheard(address)
    assert why.startswith(f"nothing listens at {address}: ")
    assert "tcp://*:PORT or ipc://PATH" in why


async def test_no_socket_of_that_path(tmp_path: Path) -> None:
    why = await why_unheard(f"ipc://{tmp_path}/none")
    assert why.startswith(f"there is no socket ipc://{tmp_path}/none: ") and "bind" in why


async def test_a_socket_whose_owner_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    server = await asyncio.start_unix_server(lambda *_: None, path)
    server.close()
    await server.wait_closed()
    if not path.exists():  # later Pythons remove it
        path.touch()
    assert "ipc://" in await why_unheard(f"ipc://{path}")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_something_else_listens(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        why = await why_unheard(f"tcp://127.0.0.1:{port}")
    assert "does not speak ZMQ" in why


async def test_a_socket_that_is_no_publisher() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        why = await why_unheard(f"tcp://127.0.0.1:{port}")
    assert "is no publisher" in why


async def test_no_address() -> None:
    assert "cannot be reached" in await why_unheard("tcp://127.0.0.1:nonsense")
