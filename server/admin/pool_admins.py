"""PoolAdmins: admin calls for workers of several pools, which a store lists."""

from collections.abc import Callable, Iterable

from ...base.errors import StatusCode
from .worker_admin import AdminError, WorkerAdmin, WorkerStatus, no_worker


class PoolAdmins:
    """Implements ShownWorkers: a call goes to the pool that has the worker. None is added: a
    worker comes with the card that it publishes."""

    def __init__(self, admins: Callable[[], Iterable[WorkerAdmin]]) -> None:
        self._admins = admins

    async def add(self, url: str, weight: float | None = None) -> tuple[WorkerStatus, bool]:
        text = "workers come from the store, with their model cards: a call cannot add one"
        raise AdminError(StatusCode.FAILED_PRECONDITION, text)

    async def drain(self, name: str, deadline_s: float | None = None) -> WorkerStatus:
        return await self._admin_of(name).drain(name, deadline_s)

    async def remove(self, name: str, *, force: bool = False) -> WorkerStatus:
        return await self._admin_of(name).remove(name, force=force)

    async def set_weight(self, name: str, weight: float) -> WorkerStatus:
        return await self._admin_of(name).set_weight(name, weight)

    def show(self, name: str) -> WorkerStatus:
        return self._admin_of(name).show(name)

    def _admin_of(self, name: str) -> WorkerAdmin:
        for admin in self._admins():
            if admin.has(name):
                return admin
        raise no_worker(name)
