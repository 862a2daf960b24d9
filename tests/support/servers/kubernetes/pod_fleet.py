"""Pods of the API server of tests, their engines real processes, and a router that finds them."""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from grpc import aio
from support.calls import messages_of
from support.fake_engine import prompt
from support.free_port import free_port
from support.processes import Command, command, http_json
from support.security.certificates import Authority
from support.servers.kubernetes.api_server import NAMESPACE, KubernetesServer
from support.servers.kubernetes.pods import PODS, add_pod, set_ready

from dynamo_router.runtime.kv_stores.kubernetes import PodIdentity
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
MOCKER = (
    *("--discovery", "kubernetes", "--block-size", str(BLOCK), "--num-gpu-blocks", "256"),
    *("--speedup-ratio", "1000", "--vocab-size", "1000"),
)
SERVE = (
    *("--discovery", "kubernetes", "--port", "0", "--http-port", "0", "--no-kv-events"),
    *("--block-size", str(BLOCK), "--probe-interval-s", "0.5", "--probe-retry-first-s", "0.05"),
)


class PodFleet:
    """Use as an async context manager; `dialect` is how the engines are called."""

    def __init__(self, folder: Path, dialect: str) -> None:
        self._folder, self._dialect = folder, dialect
        self.server = KubernetesServer(authority=Authority(folder / "authority"))
        self._stack = AsyncExitStack()
        self._identities: dict[str, PodIdentity] = {}
        self.running: dict[str, Command] = {}
        """the engine's process of each pod"""

    async def __aenter__(self) -> "PodFleet":
        try:
            await self.server.start()
            self._stack.push_async_callback(self.server.stop)
            self._kubeconfig = self.server.kubeconfig(self._folder, "first")
            await self._start_router()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    # Pods

    async def add(self, *names: str) -> None:
        """Pods whose containers run and are ready."""
        for name in names:
            self._identities[name] = add_pod(self.server, name)
        await asyncio.gather(*map(self.run, names))
        await self.mark_ready()

    async def run(self, name: str) -> None:
        """Its container, also again after it ended: on another port."""
        identity = self._identities[name]
        environ = {
            "KUBECONFIG": str(self._kubeconfig), "POD_NAME": name, "POD_UID": identity.uid,
            "POD_NAMESPACE": NAMESPACE,
        }  # fmt: skip
        words = ("mocker", "--port", str(free_port()), "--dialect", self._dialect, *MOCKER)
        engine = await self._stack.enter_async_context(
            command(self._folder / name, *words, environ=environ)
        )
        await engine.says("ready")
        self.running[name] = engine

    async def mark_ready(self) -> None:
        """As the cluster does it: who runs is ready."""
        await set_ready(self.server, *self.running)

    async def remove(self, name: str) -> None:
        """A pod is deleted: no longer ready, told to end, and then gone."""
        engine = self.running.pop(name)
        await self.mark_ready()
        await engine.stop()
        self.server.objects.delete(PODS, NAMESPACE, name)
        await self.server.changed()

    def id_of(self, name: str) -> int:
        return self._identities[name].instance_id

    # The API server

    def rotate_tokens(self) -> None:
        """The old token is refused from now on; who reads the file again finds the new one."""
        self.server.tokens = {"second"}
        self.server.kubeconfig(self._folder, "second")

    # The router

    async def _start_router(self) -> None:
        environ = {"KUBECONFIG": str(self._kubeconfig), "POD_NAMESPACE": NAMESPACE}
        self.router = await self._stack.enter_async_context(
            command(self._folder / "serve", "serve", *SERVE, environ=environ)
        )
        ready = re.search(r"grpc (\S+) http (\S+)", await self.router.says("dynamo-router ready"))
        assert ready is not None
        self._http = ready[2]
        channel = await self._stack.enter_async_context(aio.insecure_channel(ready[1]))
        self._generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)

    async def ask(self, number: int) -> list[int]:
        """The tokens of a request's answer."""
        request = prompt(f"r{number}", 40)
        answers = [
            pb.GenerateResponse.FromString(message)
            for message in await messages_of(self._generate(request.SerializeToString()))
        ]
        assert answers[-1].complete.finish_reason == "length"
        return list(answers[-1].complete.output_token_ids)

    async def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await http_json(self._http, "/workers"))["workers"]
        return rows

    async def routes_among(self, *names: str) -> bool:
        """Whether these pods take requests, and no other is known."""
        states = {row["worker_id"]: row["state"] for row in await self.workers()}
        return states == {self.id_of(name): "ready" for name in names}
