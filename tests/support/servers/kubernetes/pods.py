"""Pods of the API server of tests: who is there, and who is ready."""

from typing import Any

from support.servers.kubernetes.api_objects import KINDS
from support.servers.kubernetes.api_server import NAMESPACE, KubernetesServer

from dynamo_router.runtime.kv_stores.kubernetes import PodIdentity

PODS, SLICES, METADATA, DEPLOYMENTS, *_ = KINDS
LABELS = {
    "nvidia.com/dynamo-discovery-enabled": "true",
    "nvidia.com/dynamo-discovery-backend": "kubernetes",
}


def add_pod(
    server: KubernetesServer,
    name: str,
    container: str | None = None,
    namespace: str = NAMESPACE,
    **ready: bool,
) -> PodIdentity:
    """A pod, with its containers' readiness by name."""
    statuses = [{"name": each, "ready": is_ready} for each, is_ready in ready.items()]
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS},
        "status": {"containerStatuses": statuses},
    }  # fmt: skip
    made = server.objects.create(PODS, namespace, pod, "kubelet")
    return PodIdentity(name, made["metadata"]["uid"], namespace, container)


async def set_ready(
    server: KubernetesServer,
    *pods: str,
    name: str = "workers",
    namespace: str = NAMESPACE,
    labels: dict[str, str] | None = None,
) -> None:
    """Let a slice have these pods as ready ones, and another that is not."""
    endpoints: list[dict[str, Any]] = [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": {"name": pod}}
        for pod in pods
    ]
    endpoints.append({"addresses": [], "conditions": {"ready": False}, "targetRef": {"name": "x"}})
    found = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": LABELS if labels is None else labels},
        "endpoints": endpoints,
    }  # fmt: skip
    place = SLICES.plural, namespace, name
    write = server.objects.replace if place in server.objects.objects else None
    if write is None:
        server.objects.create(SLICES, namespace, found, "controller")
    else:
        write(SLICES, namespace, name, found, "controller")
    await server.changed()
