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

WATCHED = {
    "frontend-kubernetes": {"dynamoworkermetadatas", "endpointslices"},
    "frontend-containers": {"dynamoworkermetadatas", "pods"},
    "serve-kubernetes": {"dynamoworkermetadatas", "endpointslices"},
    "epp": {"pods", "inferencepools", "inferenceobjectives"},
    "epp-labels": {"pods", "inferenceobjectives"},
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
    server = KubernetesServer()
    await server.start()
    try:
        environ["KUBECONFIG"] = str(server.kubeconfig(tmp_path / "account", "first"))
        more = {"serve": ("port", "http_frontend"), "epp": ("grpc_port", "grpc_health_port")}
        ports = dict.fromkeys(("http_port", *more.get(mode, ())), "0")
        if mode == "epp":
            pool = settings_of(objects).get("pool", "none")
            await put(server, pool_of(pool, labels={"app": "vllm"}))
            ports["lame_duck_s"] = "0"
        watches = len(WATCHED[case]) + (mode == "epp")  # objectives are of two groups
        file = file_of(objects, tmp_path / "etc", {"host": '"127.0.0.1"'} | ports)
        async with command(tmp_path / "run", mode, "--config", file, environ=environ) as router:
            await router.says("dynamo-router ready")
            await until(lambda: server.watches >= watches, 60)
            await _history_is_forgotten(server, watches)
            assert await router.stop() == 0
    finally:
        await server.stop()
    asked = {_right(*request) for request in server.requests}
    allowed = {
        (group, resource, verb)
        for rule in one(objects, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == allowed
    assert {resource for _, resource, _ in asked} == WATCHED[case]
    names = {
        query.get("fieldSelector")
        for _, path, query in server.requests
        if path.endswith("/inferencepools")
    }
    rules = [rule for rule in one(objects, "Role")["rules"] if "resourceNames" in rule]
    named = {f"metadata.name={name}" for rule in rules for name in rule["resourceNames"]}
    assert names == (named if case.startswith("epp") else set()), "a role may name objects"


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
    assert method == "GET"
    found = re.fullmatch(r"/(?:api|apis/([^/]+))/v\w+/namespaces/[^/]+/(\w+)(/\w+)?", path)
    assert found is not None, path
    group, resource, name = found.groups()
    return group or "", resource, "get" if name else "watch" if "watch" in query else "list"
