"""A frontend's settings read again while it serves: all of its pools use them, later ones too."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelServer

from dynamo_router.frontend.config import ModelFrontendConfig
from dynamo_router.process.settings import SettingsSource

COARSE = replace(TINY, block_size=32)
LIVE = """
max_attempts = 5
[outliers]
failures_in_a_row = 11
[router.admission]
queue_limit = 12
"""


class Rig(NamedTuple):
    """A frontend whose settings are a file."""

    server: ModelServer
    session: aiohttp.ClientSession
    file: Path

    async def reload(self, text: str, **more: Any) -> tuple[int, Any]:
        self.file.write_text(text)
        url = f"http://{self.server.address}/reload"
        async with self.session.post(url, **more) as answer:
            return answer.status, await answer.json()

    def in_use(self) -> list[tuple[int, int, int]]:
        """The settings by which each pool goes."""
        pools = [pool.workers for pool in self.server.models.pools]
        return [
            (
                pool.dispatcher.plain.max_attempts,
                pool.monitor.reports.outliers.policy.failures_in_a_row,
                pool.router.limits.config.queue_limit,
            )
            for pool in pools
            if pool is not None
        ]


@asynccontextmanager
async def serving(folder: Path, **flags: Any) -> AsyncIterator[Rig]:
    file = folder / "frontend.toml"
    file.write_text("")
    given = {"http_port": 0, "discovery": "file", "router.use_kv_events": False, **flags}
    source = SettingsSource(ModelFrontendConfig, given, str(file))
    server = ModelServer(source.current.config, source)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        await server.start()
        yield Rig(server, await stack.enter_async_context(aiohttp.ClientSession()), file)


async def test_all_pools_use_what_changed_and_those_that_come_later(
    backend: Backend, tmp_path: Path
) -> None:
    async with registered(backend, 1, model_id="a", engine=TINY), serving(tmp_path) as rig:
        await until(lambda: len(rig.in_use()) == 1)
        assert (5, 11, 12) not in rig.in_use()
        status, body = await rig.reload(LIVE)
        assert status == 200 and body["changed"]["max_attempts"]["new"] == 5
        assert rig.in_use() == [(5, 11, 12)]
        assert rig.server.config.max_attempts == 5
        async with registered(backend, 1, model_id="b", engine=COARSE):
            await until(lambda: len(rig.in_use()) == 2)
            assert rig.in_use() == [(5, 11, 12)] * 2
            rig.file.write_text("max_attempts = 2\n")
            rig.server.reload()  # as at SIGHUP
            assert [each[0] for each in rig.in_use()] == [2, 2]


async def test_what_needs_a_restart_is_refused_by_name_and_changes_nothing(
    backend: Backend, tmp_path: Path
) -> None:
    async with registered(backend, 1, model_id="a", engine=TINY), serving(tmp_path) as rig:
        await until(lambda: len(rig.in_use()) == 1)
        before = rig.in_use()
        status, body = await rig.reload("max_attempts = 5\nkeep_alive_s = 3\n")
        assert status == 409 and "keep_alive_s" in body["error"]["message"]
        assert rig.in_use() == before


async def test_without_tokens_nobody_elsewhere_may_reload(backend: Backend, tmp_path: Path) -> None:
    async with serving(tmp_path, host="0.0.0.0") as rig:  # noqa: S104  # that is what is tested
        assert (await rig.reload(LIVE))[0] == 403
    tokens = tmp_path / "tokens.toml"
    callers = {"admin": "admin-0123456789abcdef", "client": "client-0123456789abcdef"}
    tokens.write_text(
        "".join(
            f'[[caller]]\nname = "{role}"\ntoken = "{token}"\nroles = ["{role}"]\n'
            for role, token in callers.items()
        )
    )
    tokens.chmod(0o600)
    async with serving(tmp_path, host="0.0.0.0", auth_tokens=str(tokens)) as rig:  # noqa: S104
        for role, status in (("client", 403), ("admin", 200)):
            headers = {"authorization": f"Bearer {callers[role]}"}
            assert (await rig.reload(LIVE, headers=headers))[0] == status
