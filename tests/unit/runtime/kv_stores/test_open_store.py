"""A store by the name that the environment has for it."""

from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.kv_stores import (
    EtcdStore,
    FileStore,
    MemoryStore,
    NatsStore,
    open_store,
)
from dynamo_router.runtime.kv_stores.kubernetes import KubernetesStore

KINDS = {
    "": EtcdStore,
    "etcd": EtcdStore,
    "kv_store": EtcdStore,
    "file": FileStore,
    "mem": MemoryStore,
    "memory": MemoryStore,
    "nats": NatsStore,
    "kubernetes": KubernetesStore,
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
async def test_each_name_has_its_store(name: str, kind: type, tmp_path: Path) -> None:
    environ = {"DYN_DISCOVERY_BACKEND": name, "DYN_FILE_KV": str(tmp_path), "KUBECONFIG": "x"}
    store = open_store(environ=environ)
    assert type(store) is kind
    await store.close()


@pytest.mark.parametrize("name", ["consul", "redis"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"DYN_DISCOVERY_BACKEND: '{name}' is not one of etcd"):
        open_store(environ={"DYN_DISCOVERY_BACKEND": name})
    with pytest.raises(ConfigError, match=f"'{name}' is not one of etcd"):
        open_store(name, {})


def test_a_bad_address_is_named() -> None:
    with pytest.raises(ConfigError, match="ETCD_ENDPOINTS"):
        open_store("etcd", {"ETCD_ENDPOINTS": "ftp://x"})
    with pytest.raises(ConfigError, match="NATS"):
        open_store("nats", {"NATS_SERVER": "http://x"})
