"""What one process is asked to change is changed in all, and what one does not know others do."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.process.settings import bad_setting
from dynamo_router.server.admin import AdminError, Change, WorkerStatus
from dynamo_router.server.fronts import FrontPlace, SharedChanges, SharedReload, Siblings
from dynamo_router.server.fronts.supervisor import take_port

WORKER = WorkerStatus(1, "127.0.0.1:1", "ready", 1.0, 0)


class Admin:
    """Workers and thresholds of one process, which remembers what was asked of it."""

    def __init__(self, in_flight: int = 0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.fails: AdminError | None = None
        self.status = replace(WORKER, in_flight=in_flight)

    def _did(self, *asked: Any) -> WorkerStatus:
        if self.fails is not None:
            raise self.fails
        self.asked.append(asked)
        return self.status

    async def add(self, url: str, weight: float | None = None) -> tuple[WorkerStatus, bool]:
        return self._did("add", url, weight), True

    async def drain(self, name: str, deadline_s: float | None = None) -> WorkerStatus:
        return self._did("drain", name, deadline_s)

    async def remove(self, name: str, *, force: bool = False) -> WorkerStatus:
        return self._did("remove", name, force)

    async def set_weight(self, name: str, weight: float) -> WorkerStatus:
        return self._did("weight", name, weight)

    def show(self, name: str) -> WorkerStatus:
        return self.status

    def change(self, **thresholds: Any) -> None:
        self._did("thresholds", thresholds)


@asynccontextmanager
async def family(folder: Path, *admins: Admin) -> AsyncIterator[list[SharedChanges]]:
    async with AsyncExitStack() as stack:
        made = []
        for number, admin in enumerate(admins):
            siblings = Siblings(FrontPlace(number, len(admins), str(folder)))
            changes: Any = SharedChanges(admin, admin, siblings)  # type: ignore[arg-type]
            stack.push_async_callback(siblings.close)
            await siblings.start()
            await changes.catch_up()
            made.append(changes)
        yield made


async def test_a_call_is_made_by_all(tmp_path: Path) -> None:
    admins = Admin(1), Admin(2), Admin(3)
    async with family(tmp_path, *admins) as (_, one, _):
        await one.add("grpc://127.0.0.1:1", 0.5)
        assert (await one.drain("1", 0.01)).in_flight == 1 + 2 + 3
        await one.set_weight("1", 0.25)
        await one.change_limits({"active_decode_blocks_threshold": 0.5})
        assert (await one.remove("1", force=True)).warning == ""
    expected = [
        ("add", "grpc://127.0.0.1:1", 0.5),
        ("drain", "127.0.0.1:1", 0.01),
        ("weight", "127.0.0.1:1", 0.25),
        ("thresholds", {"active_decode_blocks_threshold": 0.5}),
        ("remove", "127.0.0.1:1", True),
    ]
    assert admins[0].asked == admins[2].asked == expected


async def test_what_this_process_refuses_reaches_no_other(tmp_path: Path) -> None:
    here, there = Admin(), Admin()
    here.fails = AdminError(StatusCode.NOT_FOUND, "there is no worker '1'")
    async with family(tmp_path, here, there) as (zero, _):
        for call in (zero.add("x"), zero.set_weight("1", 1), zero.drain("1"), zero.remove("1")):
            with pytest.raises(AdminError):
                await call
        here.fails = None
        with pytest.raises(AdminError, match="must be finite"):
            await zero.drain("1", float("inf"))
    assert there.asked == here.asked == []


async def test_what_another_does_not_do_is_a_warning(tmp_path: Path) -> None:
    admins = Admin(), Admin(), Admin()
    admins[1].fails = AdminError(StatusCode.NOT_FOUND, "there is no worker '1'")
    async with family(tmp_path, *admins) as (zero, _, two):
        await two._siblings.close()
        status = await zero.set_weight("1", 0.5)
    assert status.warning == "front 1: there is no worker '1'; front 2 does not answer"


async def test_a_worker_with_requests_elsewhere_is_removed_by_force_alone(tmp_path: Path) -> None:
    here, there = Admin(0), Admin(2)
    async with family(tmp_path, here, there) as (zero, _):
        with pytest.raises(AdminError, match="2 requests in flight in other processes"):
            await zero.remove("1")
        assert here.asked == there.asked == []
        await zero.remove("1", force=True)
    assert here.asked == [("remove", "1", True)]


async def test_one_that_comes_later_catches_up(tmp_path: Path) -> None:
    admins = Admin(), Admin()
    async with family(tmp_path, *admins) as (zero, one):
        await zero.add("grpc://127.0.0.1:1")
        await zero.drain("1", 0.0)
        await zero.add("grpc://127.0.0.1:1")  # taken back: the last word counts
        await one._siblings.close()
        later, siblings = Admin(), Siblings(FrontPlace(1, 2, str(tmp_path)))
        changes: Any = SharedChanges(later, later, siblings)  # type: ignore[arg-type]
        await siblings.start()
        await changes.catch_up()
        await siblings.close()
    assert later.asked == [
        ("drain", "127.0.0.1:1", None),
        ("add", "grpc://127.0.0.1:1", None),
    ]


async def test_one_process_alone_asks_nobody() -> None:
    admin = Admin(1)
    changes: Any = SharedChanges(admin, admin, Siblings())  # type: ignore[arg-type]
    await changes.catch_up()
    assert (await changes.drain("1", 0.5)).in_flight == 1
    assert (await changes.remove("1")).in_flight == 1
    assert admin.asked == [("drain", "1", 0.5), ("remove", "1", False)]


class Settings:
    def __init__(self, fails: bool = False) -> None:
        self.fails, self.reads = fails, 0

    def reload(self) -> list[Change]:
        self.reads += 1
        if self.fails:
            raise bad_setting("port", "cannot change without a restart")
        return [Change("max_attempts", 1, 2)]


async def test_settings_are_read_again_by_all_or_it_is_an_error(tmp_path: Path) -> None:
    here, there = Settings(), Settings()
    async with AsyncExitStack() as stack:
        shared = []
        for number, settings in enumerate((here, there)):
            siblings = Siblings(FrontPlace(number, 2, str(tmp_path)))
            made: Any = SharedReload(settings, siblings)  # type: ignore[arg-type]
            stack.push_async_callback(siblings.close)
            await siblings.start()
            shared.append(made)
        assert await shared[0].reload() == [Change("max_attempts", 1, 2)]
        assert (here.reads, there.reads) == (1, 1)
        there.fails = True
        with pytest.raises(ConfigError, match="not by front 1: port: cannot change"):
            await shared[0].reload()
        here.fails = True
        with pytest.raises(ConfigError):
            await shared[0].reload()
        assert there.reads == 2
    with pytest.raises(ConfigError, match="no settings to be read again"):
        await SharedReload(None, Siblings()).reload()


async def test_a_port_is_taken_once(tmp_path: Path) -> None:
    held = take_port("127.0.0.1", 0, "http_port")
    port = held.getsockname()[1]
    with pytest.raises(ConfigError, match=f"http_port: cannot listen on 127.0.0.1:{port}"):
        take_port("127.0.0.1", port, "http_port")
    held.close()
    for host in ("nowhere.invalid", "a..b"):
        with pytest.raises(ConfigError, match=f"host: {host} is no address"):
            take_port(host, 0, "port")
    with pytest.raises(ConfigError, match="host: cannot listen on 192.0.2.1"):
        take_port("192.0.2.1", 0, "port")
