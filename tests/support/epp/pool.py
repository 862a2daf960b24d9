"""An InferencePool, its pods and objectives, at the API server of tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from support.servers.kubernetes.api_objects import KINDS
from support.servers.kubernetes.api_server import NAMESPACE, KubernetesServer

(PODS,) = (kind for kind in KINDS if kind.kind == "Pod")
(POOLS,) = (kind for kind in KINDS if kind.kind == "InferencePool")
REWRITES = {kind.group: kind for kind in KINDS if kind.kind == "InferenceModelRewrite"}
OBJECTIVES = {kind.group: kind for kind in KINDS if kind.kind == "InferenceObjective"}
LABELS = {"app": "qwen"}


def pool_of(
    name: str = "qwen", *ports: int, labels: Mapping[str, str] = LABELS, **more: Any
) -> dict[str, Any]:
    """An InferencePool of v1 as the Gateway API Inference Extension has it."""
    targets = [{"number": port} for port in ports or (8000,)]
    picker = {"group": "", "kind": "Service", "name": "epp", "port": {"number": 9002}}
    spec = {"selector": {"matchLabels": dict(labels)}, "targetPorts": targets}
    return {
        "apiVersion": POOLS.api_version,
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": spec | {"endpointPickerRef": picker} | more,
    }


def pod_of(
    name: str,
    ip: str | None = "127.0.0.1",
    *,
    ready: bool = True,
    labels: Mapping[str, str] = LABELS,
    terminating: bool = False,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(labels)}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": str(ready)},
    ]
    status = {"conditions": conditions} | ({"podIP": ip} if ip else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def objective_of(name: str, group: str, pool: str = "qwen", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": OBJECTIVES[group].api_version,
        "kind": "InferenceObjective",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool}, **spec},
    }


def rewrite_of(
    name: str, group: str, *rules: Any, pool: str = "qwen", **metadata: Any
) -> dict[str, Any]:
    return {
        "apiVersion": REWRITES[group].api_version,
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name, **metadata},
        "spec": {"poolRef": {"name": pool}, "rules": list(rules)},
    }


def rule_of(models: Sequence[str], *targets: str, weights: Sequence[int] = ()) -> dict[str, Any]:
    """A rule of an InferenceModelRewrite; no models: for all."""
    matches = [{"model": {"type": "Exact", "value": model}} for model in models]
    found: list[dict[str, Any]] = [{"modelRewrite": target} for target in targets]
    for target, weight in zip(found, weights, strict=False):
        target["weight"] = weight
    return {"targets": found} | ({"matches": matches} if models else {})


async def put(server: KubernetesServer, *objects: dict[str, Any]) -> None:
    """Make them, or let them replace those of their names."""
    for found in objects:
        kind = next(
            kind
            for kind in KINDS
            if (kind.api_version, kind.kind) == (found["apiVersion"], found["kind"])
        )
        name = found["metadata"]["name"]
        if (kind.place, NAMESPACE, name) in server.objects.objects:
            server.objects.replace(kind, NAMESPACE, name, found, "controller")
        else:
            server.objects.create(kind, NAMESPACE, found, "controller")
    await server.changed()


async def delete(server: KubernetesServer, kind: Any, *names: str) -> None:
    for name in names:
        server.objects.delete(kind, NAMESPACE, name)
    await server.changed()


def endpoints_of(workers: Mapping[int, Any]) -> Sequence[str]:
    """The addresses of a source's workers."""
    return sorted(worker.url.address for worker in workers.values())
