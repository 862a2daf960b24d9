"""LiveSettings: the configuration of a running server, and the parts that take another one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ...process.logs import LogOutput
from ..admin import LOG, Change, WorkerList, check_changes, check_worker_lists
from ..config import ServeConfig


class LivePool(Protocol):
    """A pool whose settings can change while it serves."""

    @property
    def has_queue(self) -> bool:
        """Whether requests can wait in it; it has a queue from its start or never."""
        ...

    def change(self, new: ServeConfig, keys: frozenset[str]) -> None:
        """Use the server's settings of these keys, which were checked, from now on."""


class LiveSettings:
    """Gives each pool of a server its share of a new configuration. `config` is the current one,
    which a pool that comes later begins with."""

    def __init__(
        self,
        config: ServeConfig,
        pools: Callable[[], Iterable[LivePool]],
        *,
        workers: WorkerList | None = None,
        output: LogOutput | None,
    ) -> None:
        """`workers`: the configuration's list of them, where there is one."""
        self.config = config
        self._pools, self._workers, self._output = pools, workers, output

    def check(self, changes: Sequence[Change], old: ServeConfig, new: ServeConfig) -> None:
        """ConfigError if these changes cannot be made while the server runs."""
        queues = all(pool.has_queue for pool in self._pools())
        check_changes(changes, old, new, queues=queues)
        check_worker_lists(old.workers, new.workers)

    def apply(self, new: ServeConfig, keys: frozenset[str]) -> None:
        """Use the settings of these keys, which were checked, from now on."""
        old, self.config = self.config, new
        if keys.intersection(LOG) and self._output is not None:
            log = new.observability
            self._output.change(log.log_level, log.log_format)
        for pool in self._pools():
            pool.change(new, keys)
        if self._workers is not None:
            self._workers.refresh_s = new.dns_refresh_s
            if "workers" in keys:
                self._workers.reconcile(old.workers, new.workers)
