"""Deployments of the API server of tests, and what a ReplicaSet's controller does for them.

Which pods go first, by Kubernetes' page on ReplicaSets: those that are not ready, then those of the
lowest deletion cost, then the newest.
"""

from itertools import count
from typing import Any

from support.servers.kubernetes.api_server import NAMESPACE, KubernetesServer
from support.servers.kubernetes.pods import DEPLOYMENTS, PODS

COST = "controller.kubernetes.io/pod-deletion-cost"
_numbers = count()


def add_deployment(server: KubernetesServer, name: str, replicas: int) -> None:
    body = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
    }  # fmt: skip
    server.objects.create(DEPLOYMENTS, NAMESPACE, body, "kubectl")


def pods_of(server: KubernetesServer, name: str) -> list[dict[str, Any]]:
    page = server.objects.page(
        PODS, NAMESPACE, lambda pod: pod["metadata"].get("labels", {}).get("app") == name
    )
    found: list[dict[str, Any]] = page["items"]
    return found


def reconcile(server: KubernetesServer, name: str, *, ready: bool = True) -> list[str]:
    """Bring the pods to the number that is wanted; the names of those that were deleted."""
    wanted = server.objects.get(DEPLOYMENTS, NAMESPACE, name)["spec"]["replicas"]
    there = sorted(pods_of(server, name), key=_first_to_go)
    deleted = [pod["metadata"]["name"] for pod in there[: max(0, len(there) - wanted)]]
    for pod in deleted:
        server.objects.delete(PODS, NAMESPACE, pod)
    for _ in range(wanted - len(there)):
        status = "True" if ready else "False"
        body = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{name}-{next(_numbers)}", "labels": {"app": name}},
            "spec": {"containers": [{"name": "main"}, {"name": "sidecar"}]},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        }  # fmt: skip
        server.objects.create(PODS, NAMESPACE, body, "replicaset")
    return deleted


def _first_to_go(pod: dict[str, Any]) -> tuple[bool, int, int]:
    ready = pod["status"]["conditions"][0]["status"] == "True"
    cost = int(pod["metadata"].get("annotations", {}).get(COST, "0"))
    return ready, cost, -int(pod["metadata"]["name"].rpartition("-")[2])
