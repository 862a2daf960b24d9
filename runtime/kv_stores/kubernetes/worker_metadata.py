"""DynamoWorkerMetadata: what one pod says of itself, as an object of Kubernetes and as keys.

Its `spec.data` has a map for each bucket, from keys to the objects that other stores have as JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ....base.errors import UNREADABLE
from .pod_identity import PodIdentity

GROUP, VERSION, KIND = "nvidia.com", "v1alpha1", "DynamoWorkerMetadata"
PLURAL = "dynamoworkermetadatas"
FIELD_MANAGER = "dynamo-worker"
MAPS = {
    "v1/instances": "endpoints",
    "v1/mdc": "model_cards",
    "v1/event_channels": "event_channels",
    "v1/event_sources": "event_sources",
}
"""The map of each bucket. Other buckets have none: nothing can be written there."""
_MOST = (1 << 53) - 1

Data = Mapping[str, Mapping[str, bytes]]
"""Bucket to key to value."""
_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """One object that was read. `data` has values in one form, from any writer."""

    name: str
    uid: str
    data: Data


def normalized(value: bytes) -> bytes:
    """A value as it comes back out of Kubernetes. ValueError if it cannot be kept there.

    Only objects can, and numbers that a double holds exactly.
    """
    try:
        read = msgspec.json.decode(value)
    except UNREADABLE as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError("not a JSON object")
    _check_numbers(read)
    return _encoder.encode(read)


def manifest(identity: PodIdentity, data: Data) -> dict[str, Any]:
    """The object to apply: all that the pod says."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": identity.name,
            "namespace": identity.namespace,
            "ownerReferences": [identity.owner],
        },
        "spec": {
            "data": {
                field: {
                    key: msgspec.json.decode(value)
                    for key, value in sorted(data.get(bucket, {}).items())
                }
                for bucket, field in MAPS.items()
            }
        },
    }


def read_metadata(found: Any) -> WorkerMetadata:
    """An object of the API server. ValueError if it says nothing that can be read.

    A map may be null: applying an empty one leaves that. What is in a map and is no object is
    left out.
    """
    name, uid = name_and_uid(found)
    spec = found.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    if not isinstance(data, dict):
        raise ValueError("spec.data is not an object")
    buckets: dict[str, dict[str, bytes]] = {}
    for bucket, field in MAPS.items():
        entries = data.get(field)
        if entries is None:
            entries = {}
        if not isinstance(entries, dict):
            raise ValueError(f"spec.data.{field} is not an object")
        buckets[bucket] = {
            _whole_key(key, value): _encoder.encode(value)
            for key, value in entries.items()
            if isinstance(value, dict) and key and "\0" not in key
        }
    return WorkerMetadata(name, uid, buckets)


def name_and_uid(found: Any) -> tuple[str, str]:
    """Of any object of the API server. ValueError if it has none."""
    metadata = found.get("metadata") if isinstance(found, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise ValueError("an object without a name")
    uid = metadata.get("uid")
    return name, uid if isinstance(uid, str) else ""


def _whole_key(key: str, value: dict[str, Any]) -> str:
    """The key with the instance's id: earlier versions of Dynamo leave it out."""
    id = value.get("instance_id")
    if isinstance(id, int) and id >= 0 and f"{id:x}" not in key.split("/"):
        return f"{key}/{id:x}"
    return key


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _check_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner)
    elif isinstance(value, int) and not -_MOST <= value <= _MOST:
        raise ValueError(f"{value} is not below 2**53")
