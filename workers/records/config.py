"""Where workers are found, or write themselves down: a setting that router and workers share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...process.settings import bad_setting, option
from ...runtime import kv_stores
from ...runtime.kv_stores import BACKENDS, KeyValueStore

STATIC = "static"
_OTHER_NAMES = {"kv_store": "etcd", "mem": "memory"}


@dataclass(frozen=True, kw_only=True)
class DiscoveryConfig:
    """ConfigError, naming the key, on a bad value. How a store is reached says the environment."""

    discovery: str | None = option(
        None,
        f"Where workers are found: {STATIC} (those that are given), {', '.join(BACKENDS)}. Not"
        f" given: {STATIC}; for serve without workers etcd, if ETCD_ENDPOINTS is set.",
        env=("DYN_DISCOVERY_BACKEND",),
    )

    def __post_init__(self) -> None:
        if self.discovery is not None and self._named not in (STATIC, *BACKENDS):
            known = ", ".join((STATIC, *BACKENDS))
            raise bad_setting("discovery", f"{self.discovery!r} is not one of {known}")

    @property
    def _named(self) -> str:
        given = self.discovery or STATIC
        return _OTHER_NAMES.get(given, given)

    def backend(self, *, given_workers: bool, environ: Mapping[str, str] | None = None) -> str:
        """The name of the store, or static. `given_workers`: the configuration has workers."""
        environ = os.environ if environ is None else environ
        if self.discovery is None and not given_workers and environ.get("ETCD_ENDPOINTS"):
            return "etcd"
        return self._named

    def open(self, backend: str) -> KeyValueStore | None:
        """The store of that name; None for static. ConfigError if its address is no good."""
        return None if backend == STATIC else kv_stores.open_store(backend)
