"""Which endpoints the pods of a pool are, by what an API server says of them. No I/O.

An object that cannot be read stands for its last one that could: the API server passes through such
states. Sources: InferencePool of the Gateway API Inference Extension, v1 (selector, 1 to 8 target
ports, each an endpoint of its own); llm-d's pod label of roles.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

import structlog

from ...base import unreadable
from ...base.urls import joined
from ...workers.records import DiscoveredWorker
from ...workers.worker_url import OPENAI, WorkerUrl
from ..pods_config import DECODE, MOST_PORTS, PREFILL, PodsConfig

ROLE_LABEL = "llm-d.ai/role"
_NEITHER = "encode"

log = structlog.get_logger(__name__)


class PoolSpec(NamedTuple):
    """Which pods, and which of their ports, are endpoints."""

    labels: str
    ports: tuple[int, ...]


class Pod(NamedTuple):
    """A pod that takes requests."""

    uid: str
    ip: str
    role: str


class PodView:
    """Feed it what the watches of a pool and of its pods report; `workers` is what that comes to.

    `aggregated` are ids of workers that run whole requests: those whose pods are not labelled as
    ones that are handed prompts. It is changed in place.
    """

    def __init__(self, config: PodsConfig) -> None:
        self._config = config
        self.spec: PoolSpec | None = None
        """None: there is no pool"""
        if config.endpoint_selector is not None:
            self.spec = PoolSpec(config.endpoint_selector, config.ports)
        self._pods: dict[str, Pod] = {}
        self.workers: dict[str, dict[int, DiscoveredWorker]] = {PREFILL: {}, DECODE: {}}
        """by role and id: those of each role"""
        self.aggregated: set[int] = set()

    def on_pool(self, found: Any | None) -> None:
        """The pool as it is now; None: it is gone."""
        if found is None:
            self.spec = None
        else:
            try:
                self.spec = read_pool(found)
            except ValueError as error:
                unreadable.counts["pods"] += 1
                log.warning("the InferencePool cannot be read", error=str(error)[:200])
        self._settle()

    def on_pods_listed(self, objects: Iterable[Any]) -> None:
        """All pods of the selector."""
        before, self._pods = self._pods, {}
        for found in objects:
            self._learn(found, before)
        self._settle()

    def on_pod(self, found: Any, deleted: bool) -> None:
        """A pod as it is now, or was when it was deleted."""
        if deleted:
            self._pods.pop(_name_of(found), None)
        else:
            self._learn(found, self._pods)
        self._settle()

    def _learn(self, found: Any, before: Mapping[str, Pod]) -> None:
        name = _name_of(found)
        try:
            pod = read_pod(found)
        except ValueError as error:
            unreadable.counts["pods"] += 1
            log.warning("a pod cannot be read", pod=name[:253], error=str(error)[:200])
            pod = before.get(name)
        if pod is not None:
            self._pods[name] = pod
        else:
            self._pods.pop(name, None)

    def _settle(self) -> None:
        found: dict[str, dict[int, DiscoveredWorker]] = {PREFILL: {}, DECODE: {}}
        whole = set()
        ports = () if self.spec is None else self.spec.ports
        for pod in self._pods.values():
            if pod.role == _NEITHER:
                continue
            for rank, port in enumerate(ports):
                url = self._url(pod.ip, port, rank)
                role = PREFILL if pod.role == PREFILL else DECODE
                found[role][url.default_id] = DiscoveredWorker(url, incarnation=pod.uid)
                if pod.role not in (PREFILL, DECODE):
                    whole.add(url.default_id)
        self.workers = found
        self.aggregated.clear()
        self.aggregated.update(whole)

    def _url(self, ip: str, port: int, rank: int) -> WorkerUrl:
        config = self._config
        events, replay = (
            None if first is None else f"tcp://{joined(ip, first + rank)}"
            for first in (config.events_port, config.events_replay_port)
        )
        return WorkerUrl(joined(ip, port), events=events, replay=replay, dialect=OPENAI)


def read_pool(found: Any) -> PoolSpec:
    """ValueError if it is no InferencePool of v1."""
    spec = _mapping(found, "spec")
    labels = _mapping(_mapping(spec, "selector"), "matchLabels")
    if not labels or not all(isinstance(value, str) for value in labels.values()):
        raise ValueError("spec.selector.matchLabels has no labels")
    targets = spec.get("targetPorts")
    if not isinstance(targets, list) or not 1 <= len(targets) <= MOST_PORTS:
        raise ValueError(f"spec.targetPorts is no list of 1 to {MOST_PORTS} ports")
    ports = tuple(each.get("number") if isinstance(each, dict) else None for each in targets)
    if len({*ports}) < len(ports) or not all(_is_port(port) for port in ports):
        raise ValueError("spec.targetPorts has what is no port, or one twice")
    text = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return PoolSpec(text, tuple(int(port) for port in ports if port is not None))


def read_pod(found: Any) -> Pod | None:
    """None for one that takes no requests: not ready, terminating, without an address. ValueError
    if it is no pod."""
    metadata, status = _mapping(found, "metadata"), _mapping(found, "status")
    if metadata.get("deletionTimestamp"):
        return None
    conditions = status.get("conditions") or []
    if not isinstance(conditions, list):
        raise ValueError("status.conditions is no list")
    ready = any(
        isinstance(each, dict) and each.get("type") == "Ready" and each.get("status") == "True"
        for each in conditions
    )
    ip = status.get("podIP")
    if not ready or not ip:
        return None
    labels = metadata.get("labels") or {}
    role = labels.get(ROLE_LABEL, "") if isinstance(labels, dict) else ""
    return Pod(str(metadata.get("uid", "")), str(ip_address(ip)), str(role))


def _name_of(found: Any) -> str:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _mapping(found: Any, key: str) -> dict[str, Any]:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not there")
    return value


def _is_port(port: Any) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535
