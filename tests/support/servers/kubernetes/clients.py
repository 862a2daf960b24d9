"""Clients of the API server of tests, as pods have them."""

import asyncio
from pathlib import Path

from support.polling import DEADLINE_S
from support.servers.kubernetes.api_server import KubernetesServer, service_account

from dynamo_router.runtime.kv_stores import Change, Watch
from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesConfig,
    KubernetesStore,
    PodIdentity,
    instance_id_of,
)

INSTANCES = "v1/instances"
KEY = f"dynamo/backend/generate/{instance_id_of('worker-0'):x}"
VALUE = b'{"transport":{"tcp":"a:1"},"type":"Endpoint"}'


class Clients:
    """Makes clients of the server, as pods have them, and closes them."""

    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        self.server, self.token = server, service_account(folder, "first")
        self._stores: list[KubernetesStore] = []

    def __call__(
        self, identity: PodIdentity | None = None, *, containers: bool = False, **more: object
    ) -> KubernetesStore:
        config = KubernetesConfig(
            server=self.server.url, token_file=self.token, namespace="test",
            identity=identity, containers=containers, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        self._stores.append(KubernetesStore(config))
        return self._stores[-1]

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


async def soon(watch: Watch) -> Change:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(watch)
