"""KubernetesScale: one Deployment for each role, by its scale subresource; a victim is the pod that
its ReplicaSet is asked to delete first.

Source: Kubernetes' API reference (Scale of autoscaling/v1) and its page on ReplicaSets (the
annotation `controller.kubernetes.io/pod-deletion-cost`; the lowest goes first).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from ...base.errors import ConfigError
from ...runtime.kv_stores import StoreError
from ..fleet import Role
from .connector import ConnectorError

if TYPE_CHECKING:
    from ...runtime.kv_stores import KubernetesApi

MERGE_PATCH = "application/merge-patch+json"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
VICTIM_COST = "-1000"

log = structlog.get_logger(__name__)


class KubernetesScale:
    """A Connector. An engine's id is that of its pod (or container), as discovery has it."""

    names_victims = True

    def __init__(
        self, api: "KubernetesApi", namespace: str, deployments: Mapping[Role, str]
    ) -> None:
        """`deployments`: the name of the Deployment of each role. The client is closed with us."""
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        root = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._scales: dict[str, str] = {
            role: f"{root}/{name}/scale" for role, name in deployments.items()
        }

    async def start(self) -> None:
        """ConfigError where the API server refuses us, or has no such Deployment."""
        for role, path in self._scales.items():
            try:
                await self._api.call("GET", path)
            except StoreError as error:
                if error.transient:
                    continue  # it may come
                raise ConfigError(f"the Deployment of role {role}: {error}") from None

    async def asked(self) -> Mapping[str, int]:
        return {role: (await self._scale(role))[0] for role in self._scales}

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        for role, count in wanted.items():
            replicas, selector = await self._scale(role)
            if count < replicas:
                free = await self._mark(role, selector, leaving.get(role, ()))
                count = max(count, replicas - free)
            if count != replicas:
                body = {"spec": {"replicas": count}}
                await self._call("PATCH", self._scales[role], body=body, kind=MERGE_PATCH)
                log.info("deployment scaled", role=role, replicas=count, before=replicas)

    async def close(self) -> None:
        await self._api.close()

    async def _scale(self, role: str) -> tuple[int, str]:
        """(replicas that are asked for, selector of the pods)."""
        if role not in self._scales:
            raise ConnectorError(f"no Deployment is named for role {role}")
        found = await self._call("GET", self._scales[role])
        replicas = found.get("spec", {}).get("replicas", 0)  # absent for 0: it is Go's zero
        selector = found.get("status", {}).get("selector", "")
        if not isinstance(replicas, int) or not isinstance(selector, str):
            raise ConnectorError(f"{self._scales[role]} is no Scale")
        return replicas, selector

    async def _mark(self, role: str, selector: str, victims: tuple[int, ...]) -> int:
        """Ask the ReplicaSet to delete the victims' pods first; how many pods may go. It deletes
        pods that are not ready before any other."""
        listed = await self._call("GET", self._pods, params={"labelSelector": selector})
        pods = listed.get("items", ())
        named = {engine_id: pod["metadata"] for pod in pods for engine_id in _engine_ids(pod)}
        if missing := sorted(set(victims) - named.keys()):
            text = f"no pod of role {role} has the engine {', '.join(map(str, missing))}"
            raise ConnectorError(text)
        going = {named[victim]["name"]: named[victim] for victim in victims}
        for name, metadata in going.items():
            if metadata.get("annotations", {}).get(DELETION_COST) != VICTIM_COST:
                body = {"metadata": {"annotations": {DELETION_COST: VICTIM_COST}}}
                await self._call("PATCH", f"{self._pods}/{name}", body=body, kind=MERGE_PATCH)
        going |= {pod["metadata"]["name"]: {} for pod in pods if not _is_ready(pod)}
        return len(going)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: Any = None,
        kind: str = "application/json",
    ) -> Any:
        try:
            return await self._api.call(method, path, params, body, kind)
        except StoreError as error:
            raise ConnectorError(str(error)) from None


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _engine_ids(pod: Any) -> list[int]:
    """The ids that an engine of this pod may have: the pod's, and those of its containers."""
    from ...runtime.kv_stores import PodIdentity  # an extra

    name = pod["metadata"]["name"]
    containers = [each["name"] for each in pod.get("spec", {}).get("containers", ())]
    identities = [PodIdentity(name, "", "", container) for container in (None, *containers)]
    return [identity.instance_id for identity in identities]
