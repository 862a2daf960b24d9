"""Processes of one router ask each other: those that answer, hang, are gone, or speak nonsense."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.polling import until

from dynamo_router.base.errors import ConfigError
from dynamo_router.server.fronts import FrontPlace, Siblings
from dynamo_router.transport.http2 import CallError, ClientChannel

Prepare = Callable[[int, Siblings], None]


def nothing(number: int, siblings: Siblings) -> None:
    pass


def place(folder: Path, number: int, count: int) -> FrontPlace:
    return FrontPlace(number, count, str(folder))


@asynccontextmanager
async def family(
    folder: Path, count: int, prepare: Prepare = nothing
) -> AsyncIterator[list[Siblings]]:
    async with AsyncExitStack() as stack:
        made = []
        for number in range(count):
            siblings = Siblings(place(folder, number, count))
            prepare(number, siblings)
            stack.push_async_callback(siblings.close)
            await siblings.start()
            made.append(siblings)
        yield made


def doubling(number: int, siblings: Siblings) -> None:
    async def double(asked: int) -> int:
        if asked < 0:
            raise ValueError("a mistake of ours")
        return asked * 2 + number

    siblings.answer("Double", int, double)


async def test_each_answers_each(tmp_path: Path) -> None:
    async with family(tmp_path, 3, doubling) as (zero, one, two):
        assert await zero.ask_all("Double", 21, int) == {1: 43, 2: 44}
        assert await one.ask(0, "Double", 21, int) == 42
        assert await two.first("Double", 1, int, lambda found: found == 3) == 3
        assert await two.first("Double", 1, int, lambda found: found == 9) is None
        assert oct((tmp_path / "front-0.sock").stat().st_mode & 0o777) == "0o600"


async def test_one_without_a_place_has_no_siblings(tmp_path: Path) -> None:
    alone = Siblings()
    doubling(0, alone)
    await alone.start()
    assert await alone.ask_all("Double", 1, int) == {}
    assert await alone.first("Double", 1, int, bool) is None
    assert await alone.ask(1, "Double", 1, int) is None
    assert await alone.health() == {}
    await alone.close()
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_answered_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with family(tmp_path, 2, doubling) as (zero, _):
        assert await zero.ask(1, "Double", "nonsense", int) is None
        assert await zero.ask(1, "Double", 1, str) is None
        assert await zero.ask(1, "Double", -1, int) is None
        assert await zero.ask(1, "Unknown", 1, int) is None
        assert await zero.ask(1, "Double", 1, int) == 3
    assert "a mistake of ours" in caplog.text


async def test_bytes_that_are_no_question_are_refused(tmp_path: Path) -> None:
    async with family(tmp_path, 2, doubling) as (zero, _):
        channel = ClientChannel(f"unix:{tmp_path / 'front-1.sock'}")
        for message in (b"\xc1", b"", b"\x93\x01"):
            with pytest.raises(CallError):
                await anext(channel.call("/dynamo_router.Siblings/Double", message))
        await channel.close()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "front-1.sock"))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        assert await zero.ask(1, "Double", 1, int) == 3


async def test_one_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    def slow(number: int, siblings: Siblings) -> None:
        async def answer(asked: None) -> int:
            if number == 1:
                await asyncio.Event().wait()
            return number

        siblings.answer("Who", type(None), answer)

    async with family(tmp_path, 3, slow) as (zero, _, _):
        assert await zero.ask_all("Who", None, int, 0.05) == {1: None, 2: 2}
        assert await zero.first("Who", None, int, bool) == 2


async def test_health_shows_those_that_answer(tmp_path: Path) -> None:
    def prepare(number: int, siblings: Siblings) -> None:
        siblings.state = lambda: {"in_flight": number}

    async with family(tmp_path, 3, prepare) as (_, one, two):
        await two.close()
        health = await one.health()
        shown = [(row["front"], row["pid"], row["in_flight"]) for row in health["fronts"]]
        assert shown == [(0, os.getpid(), 0), (1, os.getpid(), 1)]
        assert all(row["started_s"] >= 0 for row in health["fronts"])
        assert health["fronts_missing"] == [2]


async def test_the_end_of_one_is_noticed_each_time(tmp_path: Path) -> None:
    lost: list[int] = []
    async with family(tmp_path, 2) as (zero, one):
        zero.on_lost.append(lost.append)
        for turn in range(1, 3):
            await until(lambda one=one: _watched(one))  # type: ignore[misc]
            await one.close()
            await until(lambda turn=turn: lost == [1] * turn)  # type: ignore[misc]
            one = Siblings(place(tmp_path, 1, 2))
            await one.start()  # where the last one's socket is still there
        await one.close()


def _watched(siblings: Siblings) -> bool:
    server = siblings._server
    return server is not None and server.calls_open > 0


@pytest.mark.parametrize("folder", ["gone", "long" * 40])
async def test_a_socket_that_cannot_be_had_is_an_error(tmp_path: Path, folder: str) -> None:
    siblings = Siblings(place(tmp_path / folder, 0, 2))
    with pytest.raises(ConfigError, match="fronts: cannot listen on .*: (No such|AF_UNIX path)"):
        await siblings.start()
    await siblings.close()
