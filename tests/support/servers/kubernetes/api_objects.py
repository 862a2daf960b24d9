"""The objects of an API server, their versions and their history. No I/O.

Rules, by the API conventions of Kubernetes (API concepts: resource versions, paging, watches):
a version counter for all kinds; `generation` grows with the spec alone; what changes nothing has
no version of its own; lists are of one version, whatever page; a watch from a version that was
compacted, and a page of such a list, are 410 Gone; deleting an owner deletes what it owns.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from support.servers.kubernetes.field_ownership import Conflict, applied, updated

Object = dict[str, Any]
Selector = Callable[[Object], bool]


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    kind: str
    plural: str
    short: tuple[str, ...] = ()
    kept_as: str = ""
    """where its plural is that of another group's kind, too"""

    @property
    def place(self) -> str:
        return self.kept_as or self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = (
    Kind("", "v1", "Pod", "pods", ("po",)),
    Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    Kind("nvidia.com", "v1alpha1", "DynamoWorkerMetadata", "dynamoworkermetadatas", ("dwm",)),
    Kind("apps", "v1", "Deployment", "deployments", ("deploy",)),
    Kind("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools"),
    Kind("llm-d.ai", "v1alpha2", "InferenceObjective", "inferenceobjectives"),
    Kind(
        "inference.networking.x-k8s.io",
        "v1alpha2",
        "InferenceObjective",
        "inferenceobjectives",
        kept_as="older inferenceobjectives",
    ),
    Kind("llm-d.ai", "v1alpha2", "InferenceModelRewrite", "inferencemodelrewrites"),
    Kind(
        "inference.networking.x-k8s.io",
        "v1alpha2",
        "InferenceModelRewrite",
        "inferencemodelrewrites",
        kept_as="older inferencemodelrewrites",
    ),
)


class Failure(Exception):
    """A refusal, as the Status object that tells of it."""

    def __init__(self, code: int, reason: str, message: str, causes: list[Any] | None = None):
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes or []

    @property
    def status(self) -> Object:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
            "details": {"causes": self.causes},
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    version: int
    place: tuple[str, str, str]
    before: Object | None
    after: Object | None


@dataclass
class ApiObjects:
    version: int = 1000
    compacted: int = 0
    history: list[Change] = field(default_factory=list)
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    _pages: dict[str, tuple[int, list[Object]]] = field(default_factory=dict)

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.objects.get((kind.place, namespace, name))
        if found is None:
            raise Failure(404, "NotFound", f'{kind.plural}.{kind.group} "{name}" not found')
        return deepcopy(found)

    def page(
        self, kind: Kind, namespace: str, selector: Selector, limit: int = 0, token: str = ""
    ) -> Object:
        """A page; `namespace` empty for all of them."""
        if token:
            version, left = self._pages.pop(token, (0, []))
            if version < self.compacted or not version:
                text = "The provided continue parameter is too old to display a consistent list"
                raise Failure(410, "Expired", text)
        else:
            version = self.version
            left = [
                deepcopy(found)
                for place, found in sorted(self.objects.items())
                if place[0] == kind.place and namespace in ("", place[1]) and selector(found)
            ]
        items, rest = (left[:limit], left[limit:]) if limit else (left, [])
        metadata: Object = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = uuid4().hex
            metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = version, rest
        return {
            "kind": f"{kind.kind}List", "apiVersion": kind.api_version,
            "metadata": metadata, "items": items,
        }  # fmt: skip

    def events_after(
        self, kind: Kind, namespace: str, selector: Selector, version: int
    ) -> list[Object]:
        """What a watch tells of the changes after a version."""
        if version < self.compacted:
            text = f"too old resource version: {version} ({self.compacted})"
            raise Failure(410, "Expired", text)
        events = []
        for change in self.history:
            plural, place, _ = change.place
            if change.version <= version or plural != kind.place or namespace not in ("", place):
                continue
            before = change.before is not None and selector(change.before)
            after = change.after is not None and selector(change.after)
            if after:
                events.append({"type": "MODIFIED" if before else "ADDED", "object": change.after})
            elif before:
                gone = deepcopy(change.after or change.before)
                gone["metadata"]["resourceVersion"] = str(change.version)
                events.append({"type": "DELETED", "object": gone})
        return events

    def compact(self) -> None:
        """Forget how it came to be what it is."""
        self.compacted = self.version
        self.history.clear()

    def create(self, kind: Kind, namespace: str, body: Object, manager: str) -> Object:
        name = body.get("metadata", {}).get("name")
        if not name:
            raise Failure(422, "Invalid", "metadata.name: Required value")
        if (kind.place, namespace, name) in self.objects:
            raise Failure(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        return self._write(kind, namespace, name, updated(None, self._checked(kind, body), manager))

    def replace(self, kind: Kind, namespace: str, name: str, body: Object, manager: str) -> Object:
        before = self.get(kind, namespace, name)
        seen = body.get("metadata", {}).get("resourceVersion")
        if seen not in (None, before["metadata"]["resourceVersion"]):
            text = "the object has been modified; please apply your changes to the latest version"
            raise Failure(409, "Conflict", text)
        return self._write(
            kind, namespace, name, updated(before, self._checked(kind, body), manager)
        )

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object, manager: str) -> Object:
        """A JSON merge patch (RFC 7386)."""
        return self.replace(
            kind, namespace, name, _merged(self.get(kind, namespace, name), patch), manager
        )

    def apply(
        self, kind: Kind, namespace: str, name: str, body: Object, manager: str, force: bool
    ) -> Object:
        """Server-side apply."""
        if not manager:
            raise Failure(422, "Invalid", "metadata.fieldManager: Required value: is required")
        body = self._checked(kind, body)
        if body.get("metadata", {}).get("name") != name:
            raise Failure(400, "BadRequest", "the name of the object does not match the URL's")
        if body["metadata"].get("managedFields"):
            raise Failure(400, "BadRequest", "metadata.managedFields must be nil")
        before = self.objects.get((kind.place, namespace, name))
        try:
            return self._write(kind, namespace, name, applied(before, body, manager, force))
        except Conflict as conflict:
            causes = [
                {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{other}"',
                    "field": path,
                }
                for other, path in conflict.fields
            ]
            said = [f"{cause['message']}: {cause['field']}" for cause in causes]
            text = f"Apply failed with {len(causes)} conflict(s): {', '.join(said)}"
            raise Failure(409, "Conflict", text, causes) from None

    def delete(
        self, kind: Kind, namespace: str, name: str, preconditions: Object | None = None
    ) -> Object:
        found = self.get(kind, namespace, name)
        for key, value in (preconditions or {}).items():
            if found["metadata"].get(key) != value:
                text = f"the {key} in the precondition ({value}) does not match"
                raise Failure(409, "Conflict", text)
        self._put((kind.place, namespace, name), None)
        uid = found["metadata"]["uid"]
        for place, each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences", [])
            if place[1] == namespace and any(owner["uid"] == uid for owner in owners):
                self._put(place, None)
        return found

    def _checked(self, kind: Kind, body: Object) -> Object:
        if body.get("kind") != kind.kind or body.get("apiVersion") != kind.api_version:
            text = f"the object is no {kind.kind} of {kind.api_version}"
            raise Failure(400, "BadRequest", text)
        if kind.kind == "DynamoWorkerMetadata" and "data" not in (body.get("spec") or {}):
            raise Failure(422, "Invalid", "spec.data: Required value")
        return deepcopy(body)

    def _write(self, kind: Kind, namespace: str, name: str, wanted: Object) -> Object:
        place = kind.place, namespace, name
        before = self.objects.get(place)
        metadata = wanted["metadata"]
        was = before["metadata"] if before is not None else {}
        metadata.update(
            name=name,
            namespace=namespace,
            uid=was.get("uid") or str(uuid4()),
            creationTimestamp="2026-01-01T00:00:00Z",
            generation=was.get("generation", 0),
            resourceVersion=was.get("resourceVersion", ""),
        )
        if before is None or before.get("spec") != wanted.get("spec"):
            metadata["generation"] += 1
        if before != wanted:
            metadata["resourceVersion"] = str(self.version + 1)
            self._put(place, wanted)
        return deepcopy(wanted)

    def _put(self, place: tuple[str, str, str], after: Object | None) -> None:
        self.version += 1
        before = self.objects.pop(place, None)
        if after is not None:
            self.objects[place] = deepcopy(after)
        self.history.append(Change(self.version, place, before, deepcopy(after)))


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
