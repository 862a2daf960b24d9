"""LiveSettings: the configuration of a running server read again, and used by all of its parts."""

from collections.abc import Sequence
from typing import Protocol

from ..base.errors import ConfigError
from .admin import LOG, Change, Reloader, check_changes, check_worker_lists
from .config import ServeConfig
from .fronts import SharedReload
from .server_parts import ServerParts


class LivePools(Protocol):
    """Pools whose settings can change while they serve."""

    @property
    def has_queue(self) -> bool:
        """Whether requests can wait in each of them; one has a queue from its start or never."""
        ...

    def change(self, new: ServeConfig, old: ServeConfig, keys: frozenset[str]) -> None:
        """Use the settings of these keys, which were checked, from now on."""


class LiveSettings:
    """Gives the parts of a server and its pools their share of a new configuration."""

    def __init__(self, parts: ServerParts, pools: LivePools) -> None:
        self._parts, self._pools = parts, pools
        source = parts.source
        self.reloader: Reloader | None = None
        """None: the settings can be read again from nowhere"""
        if source is not None:
            self.reloader = Reloader(source, check=self._check, apply=self._apply)
        self.shared = SharedReload(self.reloader, parts.siblings)
        """of all processes"""

    def _check(self, changes: Sequence[Change], old: ServeConfig, new: ServeConfig) -> None:
        check_changes(changes, old, new, queues=self._pools.has_queue)
        check_worker_lists(old.workers, new.workers)
        if old.prefill_workers != new.prefill_workers:
            text = "cannot change without a restart: which workers compute prompts"
            raise ConfigError(text, key="prefill_workers")

    def _apply(self, new: ServeConfig, keys: frozenset[str]) -> None:
        parts = self._parts
        old, parts.config = parts.config, new
        if keys.intersection(LOG) and parts.output is not None:
            log = new.observability
            parts.output.change(log.log_level, log.log_format)
        self._pools.change(new, old, keys)
