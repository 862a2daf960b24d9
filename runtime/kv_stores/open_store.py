"""A store by its name, from what the environment says of it."""

import os
from collections.abc import Mapping

from ...process.settings import bad_setting
from .etcd_config import EtcdConfig
from .file_store import FileStore
from .memory_store import MemoryStore
from .nats_address import NatsAddress
from .store import KeyValueStore

BACKENDS = ("etcd", "file", "kubernetes", "memory", "nats")
BACKEND_VARIABLE = "DYN_DISCOVERY_BACKEND"
_OTHER_NAMES = {"kv_store": "etcd", "mem": "memory"}


def backend_name(environ: Mapping[str, str] | None = None) -> str:
    """The store that DYN_DISCOVERY_BACKEND names, under Dynamo's names or ours; else etcd."""
    given = os.environ if environ is None else environ
    name = given.get(BACKEND_VARIABLE) or "etcd"
    name = _OTHER_NAMES.get(name, name)
    if name not in BACKENDS:
        known = ", ".join((*BACKENDS, *_OTHER_NAMES))
        raise bad_setting(BACKEND_VARIABLE, f"{name!r} is not one of {known}")
    return name


def open_store(
    backend: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> KeyValueStore:
    """A store, addressed as the environment says. ConfigError if that cannot be used.

    `backend` not given: see `backend_name`.
    """
    given = os.environ if environ is None else environ
    name = backend_name(given) if backend is None else _OTHER_NAMES.get(backend, backend)
    if name == "etcd":
        from .etcd_store import EtcdStore  # its client takes a while to import

        return EtcdStore(EtcdConfig.from_environment(given))
    if name == "file":
        return FileStore(given.get("DYN_FILE_KV") or None)
    if name == "kubernetes":
        from .kubernetes import KubernetesConfig, KubernetesStore  # an extra

        return KubernetesStore(KubernetesConfig.from_environment(given))
    if name == "memory":
        return MemoryStore()
    if name == "nats":
        from .nats_store import NatsStore

        return NatsStore(NatsAddress.from_environment(given))
    raise bad_setting("discovery", f"{name!r} is not one of {', '.join(BACKENDS)}")
