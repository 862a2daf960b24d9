"""What the chart's containers run, as processes: they serve, are probed, and ask the API server for
what their role has and nothing else.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from support.deploy.charts import CASES, objects_of, one, settings_of
from support.epp.pool import pool_of, put
from support.polling import until
from support.processes import command, http_json
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.replicas import add_deployment, pods_of, reconcile

from dynamo_router.planner.connectors import KubernetesScale
from dynamo_router.runtime.kv_stores import KubernetesApi, KubernetesConfig, PodIdentity

WATCHED = {
    "frontend-kubernetes": {"dynamoworkermetadatas", "endpointslices"},
    "frontend-containers": {"dynamoworkermetadatas", "pods"},
    "serve-kubernetes": {"dynamoworkermetadatas", "endpointslices"},
    "epp": {"pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"},
    "epp-labels": {"pods", "inferenceobjectives", "inferencemodelrewrites"},
}


def file_of(objects: list[dict[str, Any]], folder: Path, changes: dict[str, str]) -> str:
    """The path of a ConfigMap's file on this machine: with other addresses and ports."""
    text: str = one(objects, "ConfigMap")["data"]["dynamo-router.toml"]
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dynamo-router.toml").write_text(text)
    return str(folder / "dynamo-router.toml")


def arguments(objects: list[dict[str, Any]], suffix: str = "") -> tuple[dict[str, Any], list[str]]:
    """A deployment's container, and the words that it is started with."""
    (container,) = one(objects, "Deployment", suffix)["spec"]["template"]["spec"]["containers"]
    return container, list(container["args"])


async def test_a_release_with_mock_workers_serves(tmp_path: Path) -> None:
    objects = objects_of(CASES["mock"])
    _, words = arguments(objects, "-mock-workers")
    words = [re.sub(r"^--(host|port)=.*", "", word) for word in words]
    words = [word for word in words if word] + ["--host=127.0.0.1", "--port=0"]
    async with command(tmp_path / "engine", *words) as engine:
        worker = re.search(r"grpc://\S+", await engine.says("grpc://"))
        assert worker is not None
        local = {"host": '"127.0.0.1"', "workers": f'["{worker[0]}"]', "lame_duck_s": "0"}
        ports = dict.fromkeys(("port", "http_port", "http_frontend"), "0")
        container, (mode, *_) = arguments(objects)
        file = file_of(objects, tmp_path / "etc", local | ports)
        async with command(tmp_path / "router", mode, "--config", file) as router:
            line = await router.says("dynamo-router ready")
            status = re.search(r" http (\S+)", line)
            openai = re.search(r" openai (\S+)", line)
            assert status is not None and openai is not None, line

            async def is_ready() -> bool:
                try:
                    await http_json(status[1], container["readinessProbe"]["httpGet"]["path"])
                except OSError:
                    return False
                return True

            await until(is_ready, 30)
            await http_json(status[1], container["livenessProbe"]["httpGet"]["path"])
            model = (await http_json(openai[1], "/v1/models"))["data"][0]["id"]
            body = {"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            answer = await http_json(openai[1], "/v1/chat/completions", body)
            assert answer["usage"]["completion_tokens"] == 2
            assert await router.stop() == 0


@pytest.mark.parametrize("case", WATCHED)
async def test_the_role_is_what_the_router_asks_for(case: str, tmp_path: Path) -> None:
    objects = objects_of(CASES[case])
    container, (mode, *_) = arguments(objects)
    environ = {each["name"]: each.get("value", "test") for each in container["env"]}
    environ["DYNAMO_ROUTER_NATS"] = environ["DYNAMO_ROUTER_FRONTEND_NATS"] = "none"
    async with KubernetesServer() as server:
        environ["KUBECONFIG"] = str(server.kubeconfig(tmp_path / "account", "first"))
        more = {"serve": ("port", "http_frontend"), "epp": ("grpc_port", "grpc_health_port")}
        ports = dict.fromkeys(("http_port", *more.get(mode, ())), "0")
        if mode == "epp":
            pool = settings_of(objects).get("pool", "none")
            await put(server, pool_of(pool, labels={"app": "vllm"}))
            ports["lame_duck_s"] = "0"
        watches = len(WATCHED[case]) + 2 * (mode == "epp")  # two kinds are of two groups
        file = file_of(objects, tmp_path / "etc", {"host": '"127.0.0.1"'} | ports)
        async with command(tmp_path / "run", mode, "--config", file, environ=environ) as router:
            await router.says("dynamo-router ready")
            await until(lambda: server.watches >= watches, 60)
            await _history_is_forgotten(server, watches)
            assert await router.stop() == 0
    asked = {_right(*request) for request in server.requests}
    assert asked == _allowed(one(objects, "Role")["rules"])
    assert {resource for _, resource, _ in asked} == WATCHED[case]
    names = {
        query.get("fieldSelector")
        for _, path, query in server.requests
        if path.endswith("/inferencepools")
    }
    rules = [rule for rule in one(objects, "Role")["rules"] if "resourceNames" in rule]
    named = {f"metadata.name={name}" for rule in rules for name in rule["resourceNames"]}
    assert names == (named if case.startswith("epp") else set()), "a role may name objects"


async def test_the_planner_s_role_is_what_it_asks_for(tmp_path: Path) -> None:
    """It scales Deployments of none up to the least; which pod goes, the same code asks for."""
    objects = objects_of(CASES["planner-kubernetes"])
    container, (mode, *_) = arguments(objects)
    environ = {each["name"]: each.get("value", "test") for each in container["env"]}
    store = tmp_path / "store"
    store.mkdir()
    server = KubernetesServer()
    await server.start()
    names = {"prefill": "engines-prefill", "decode": "engines-decode"}
    try:
        for name in names.values():
            add_deployment(server, name, 0)
        environ["KUBECONFIG"] = str(server.kubeconfig(tmp_path / "account", "first"))
        environ["DYN_FILE_KV"] = str(store)
        changes = {"host": '"127.0.0.1"', "port": "0", "plan_store": '"file"'}
        token = tmp_path / "token"
        token.write_text("secret")
        token.chmod(0o600)
        changes |= {"router_token_file": f'"{token}"', "routers": '["http://127.0.0.1:1"]'}
        file = file_of(objects, tmp_path / "etc", changes)
        async with command(tmp_path / "run", mode, "--config", file, environ=environ) as planner:
            await planner.says("dynamo-router planner ready")

            def scaled() -> bool:
                return all(reconcile(server, name) == [] and pods_of(server, name) for name in
                           names.values())  # fmt: skip

            await until(scaled, 30)
            await _history_is_forgotten(server, 2)
            assert await planner.stop() == 0
        config = KubernetesConfig(kubeconfig=environ["KUBECONFIG"], namespace="test")
        scale = KubernetesScale(KubernetesApi(config), "test", {"decode": "engines-decode"})
        (pod,) = pods_of(server, "engines-decode")
        victim = PodIdentity(pod["metadata"]["name"], "", "").instance_id
        await scale.apply({"decode": 0}, {"decode": (victim,)})
        await scale.close()
        assert reconcile(server, "engines-decode") == [pod["metadata"]["name"]]
    finally:
        await server.stop()
    asked = {_right(*request) for request in server.requests}
    rules = one(objects, "Role")["rules"]
    assert asked == _allowed(rules)
    (only,) = (rule["resourceNames"] for rule in rules if "resourceNames" in rule)
    assert only == list(names.values())


def _allowed(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def _history_is_forgotten(server: KubernetesServer, watches: int) -> None:
    """So that it lists again, too."""
    asked = len(server.requests)
    server.objects.compact()
    server.cut_watches()

    def again() -> bool:
        return server.watches >= watches and len(server.requests) >= asked + watches

    await until(again, 60)


def _right(method: str, path: str, query: dict[str, str]) -> tuple[str, str, str]:
    """Group, resource and verb of a request, as a role names them."""
    found = re.fullmatch(
        r"/(?:api|apis/([^/]+))/v\w+/namespaces/[^/]+/(\w+)(/[\w-]+)?(/scale)?", path
    )
    assert found is not None, path
    group, resource, name, part = found.groups()
    if method != "GET":
        return group or "", f"{resource}{part or ''}", method.lower()
    verb = "get" if name else "watch" if "watch" in query else "list"
    return group or "", f"{resource}{part or ''}", verb
