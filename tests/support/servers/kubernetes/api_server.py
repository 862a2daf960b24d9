"""The API server on loopback: requests, tokens, watches, and what may go wrong with them."""

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web
from support.security.certificates import Authority
from support.servers.kubernetes.api_objects import KINDS, ApiObjects, Failure, Kind, Object
from support.servers.kubernetes.discovery_documents import document_of
from support.servers.kubernetes.selectors import selector_of

NAMESPACE = "test"


def service_account(folder: Path, token: str) -> str:
    """The path of a token's file."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "token.new"
    new.write_text(token)
    new.chmod(0o600)
    new.replace(folder / "token")
    return str(folder / "token")


@dataclass
class KubernetesServer:
    """`start` it, change `objects` and call `changed`, or let clients do it."""

    tokens: set[str] = field(default_factory=lambda: {"first"})
    bookmark_s: float = 0.05
    gone_in_stream: bool = False
    """a watch from a version that is gone is answered 200, with an ERROR event"""
    authority: Authority | None = None
    """who signs its certificate; None: it listens without TLS"""
    objects: ApiObjects = field(default_factory=ApiObjects)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """status and headers of the answers to the next requests"""
    garbage: list[bytes] = field(default_factory=list)
    """what the next watches say before they end"""
    port: int = 0
    _runner: web.AppRunner | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _watches: set[web.StreamResponse] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"

    @property
    def watches(self) -> int:
        return len(self._watches)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        context = None
        if self.authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.authority.issue("kubernetes"))
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            self.cut_watches()
            await runner.cleanup()

    def cut_watches(self) -> None:
        """Break the connections of all watches off."""
        for response in list(self._watches):
            if response._req is not None and response._req.transport is not None:
                response._req.transport.abort()

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def kubeconfig(self, folder: Path, token: str) -> Path:
        """The path of a file with which kubectl, or we, come as whoever has the token."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "kubeconfig"
        cluster = {"server": self.url}
        if self.authority is not None:
            cluster["certificate-authority"] = self.authority.ca
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "k", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [
                        {
                            "name": "c",
                            "context": {"cluster": "k", "user": "u", "namespace": NAMESPACE},
                        }
                    ],
                }  # fmt: skip
            )
        )
        path.chmod(0o600)
        return path

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.query)))
        try:
            if self.refusals:
                status, headers = self.refusals.pop(0)
                body = Failure(status, "", "not now").status
                return web.json_response(body, status=status, headers=headers)
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                raise Failure(401, "Unauthorized", "Unauthorized")
            if (document := document_of(request.path)) is not None:
                return web.json_response(document)
            path = request.path.removesuffix("/scale")
            kind, namespace, name = _place_of(path)
            if path != request.path:
                answer = await self._scale(request, kind, namespace, name)
                await self.changed()
                return web.json_response(answer)
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, kind, namespace)
            answer = await self._change(request, kind, namespace, name)
            await self.changed()
            return web.json_response(answer)
        except Failure as failure:
            return web.json_response(failure.status, status=failure.code)

    async def _change(self, request: web.Request, kind: Kind, namespace: str, name: str) -> Object:
        objects, query = self.objects, request.query
        data = await request.read()
        body: Any = yaml.safe_load(data) if data else {}
        manager = query.get("fieldManager", "")
        if request.method == "GET" and name:
            return objects.get(kind, namespace, name)
        if request.method == "GET":
            limit, token = int(query.get("limit", "0")), query.get("continue", "")
            return objects.page(kind, namespace, selector_of(query), limit, token)
        if request.method == "POST":
            return objects.create(kind, namespace, body, manager or "unknown")
        if request.method == "PUT":
            return objects.replace(kind, namespace, name, body, manager or "unknown")
        if request.method == "DELETE":
            return objects.delete(kind, namespace, name, body.get("preconditions"))
        if request.content_type == "application/apply-patch+yaml":
            force = query.get("force") == "true"
            return objects.apply(kind, namespace, name, body, manager, force)
        if request.content_type == "application/merge-patch+json":
            return objects.merge(kind, namespace, name, body, manager or "unknown")
        raise Failure(415, "UnsupportedMediaType", f"no patches of {request.content_type}")

    async def _scale(self, request: web.Request, kind: Kind, namespace: str, name: str) -> Object:
        """The scale subresource of a Deployment."""
        if kind.plural != "deployments":
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                raise Failure(415, "UnsupportedMediaType", f"no {request.content_type} here")
            replicas = (await request.json())["spec"]["replicas"]
            if not isinstance(replicas, int) or replicas < 0:
                raise Failure(422, "Invalid", "spec.replicas: must be at least 0")
            patch = {"spec": {"replicas": replicas}}
            self.objects.merge(kind, namespace, name, patch, "unknown")
        found = self.objects.get(kind, namespace, name)
        labels = found["spec"]["selector"]["matchLabels"]
        replicas = found["spec"]["replicas"]
        return {
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": name},
            "spec": {"replicas": replicas} if replicas else {},
            "status": {"selector": ",".join(f"{key}={value}" for key, value in labels.items())},
        }  # fmt: skip

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        query, selector = request.query, selector_of(request.query)
        start = query.get("resourceVersion", "")
        lines = []
        if start in ("", "0"):
            listed = self.objects.page(kind, namespace, selector)
            lines = [{"type": "ADDED", "object": each} for each in listed["items"]]
            version = int(listed["metadata"]["resourceVersion"])
        else:
            version = int(start)
            if version < self.objects.compacted and not self.gone_in_stream:
                self.objects.events_after(kind, namespace, selector, version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watches.add(response)
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds", "1800"))):
                if self.garbage:
                    await response.write(self.garbage.pop(0))
                    return response
                await self._tell(response, lines)
                while True:
                    said = self.objects.events_after(kind, namespace, selector, version)
                    version = self.objects.version
                    await self._tell(response, said)
                    if not await self._wait(version) and query.get("allowWatchBookmarks") == "true":
                        await self._tell(response, [_bookmark(kind, version)])
        except Failure as failure:
            await self._tell(response, [{"type": "ERROR", "object": failure.status}])
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watches.discard(response)
        return response

    async def _wait(self, version: int) -> bool:
        """Until something changed, or it is time for a bookmark: then False."""
        try:
            async with asyncio.timeout(self.bookmark_s), self._changed:
                await self._changed.wait_for(lambda: self.objects.version > version)
            return True
        except TimeoutError:
            return False

    @staticmethod
    async def _tell(response: web.StreamResponse, lines: list[Object]) -> None:
        for line in lines:
            await response.write(json.dumps(line).encode() + b"\n")


def _bookmark(kind: Kind, version: int) -> Object:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    found = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return {"type": "BOOKMARK", "object": found}


def _place_of(path: str) -> tuple[Kind, str, str]:
    """(kind, namespace, name) of a path; namespace empty for all, name for a list."""
    for kind in KINDS:
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
        parts = path.removeprefix(f"{root}/").split("/")
        if not path.startswith(f"{root}/"):
            continue
        if parts == [kind.plural]:
            return kind, "", ""
        if parts[0] == "namespaces" and len(parts) in (3, 4) and parts[2] == kind.plural:
            return kind, parts[1], parts[3] if len(parts) == 4 else ""
    raise Failure(404, "NotFound", "the server could not find the requested resource")
