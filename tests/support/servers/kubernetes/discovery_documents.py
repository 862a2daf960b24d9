"""What a client asks first: which groups, versions and kinds there are."""

from typing import Any

from support.servers.kubernetes.api_objects import KINDS, Kind

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def document_of(path: str) -> dict[str, Any] | None:
    """The document at a path of discovery; None for any other path."""
    if path == "/version":
        return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
    if path == "/api":
        return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
    groups = {kind.group for kind in KINDS if kind.group}
    if path == "/apis":
        listed = [_group(name) for name in sorted(groups)]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for kind in KINDS:
        if path == (f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"):
            return {
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kind.api_version,
                "resources": [_resource(each) for each in KINDS if each.group == kind.group],
            }  # fmt: skip
    return None


def _group(name: str) -> dict[str, Any]:
    kind = next(kind for kind in KINDS if kind.group == name)
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource(kind: Kind) -> dict[str, Any]:
    return {
        "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": True,
        "kind": kind.kind, "verbs": VERBS, "shortNames": list(kind.short),
    }  # fmt: skip
