"""docs/quickstart/envoy-gateway.md and llm-d.md: their values rendered, their picker run as a
process against an API server of tests, with an Envoy that has the clusters of such a gateway."""

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.deploy.charts import objects_of, one, render, settings_of
from support.epp.engine import MODEL, Engine
from support.epp.gateway import Gateway
from support.epp.pool import PODS, delete, objective_of, pod_of, pool_of, put
from support.free_port import free_port
from support.places import ROOT
from support.polling import until
from support.processes import command, http_json
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.api_server import NAMESPACE

from dynamo_router.engines.mocker import OWN_MODEL

PAGES = ROOT / "docs" / "quickstart"


def values_of(page: str) -> Any:
    """Values of the chart that a page has."""
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    (found,) = (block for block in map(yaml.safe_load, blocks) if "mode" in block)
    return found


@pytest.mark.parametrize("page", ["envoy-gateway.md", "llm-d.md"])
async def test_the_picker_of_the_page_picks(page: str, tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    objects = objects_of(values_of(page), "qwen")
    found = settings_of(objects)
    pool = found["pool"]
    server = KubernetesServer()
    async with Engine() as first, Engine(host="127.0.0.2") as second:
        await second.stop()
        second.port = first.port
        await second.start()
        await server.start()
        try:
            made = [each for each in objects if each["kind"] == "InferencePool"]
            made = made or [pool_of(pool, labels={"app": "vllm-qwen"})]
            made[0]["metadata"].pop("labels", None)
            made[0]["spec"]["targetPorts"] = [{"number": first.port}]
            labels = made[0]["spec"]["selector"]["matchLabels"]
            pods = [pod_of(f"p{n}", f"127.0.0.{n}", labels=labels) for n in (1, 2)]
            await put(server, *made, *pods, objective_of("chat", "llm-d.ai", pool, priority=1))
            grpc, health, http = free_port(), free_port(), free_port()
            file = tmp_path / "dynamo-router.toml"
            text = one(objects, "ConfigMap")["data"]["dynamo-router.toml"]
            here = {
                "host": '"127.0.0.1"',
                "grpc_port": grpc,
                "grpc_health_port": health,
                "http_port": http,
                "lame_duck_s": 0,
                "model_path": json.dumps(str(OWN_MODEL)),
            }
            for key, value in here.items():
                text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
                assert count == 1, key
            file.write_text(text.replace("nats://nats.nats:4222", "nats://127.0.0.1:9"))
            environ = {
                "KUBECONFIG": str(server.kubeconfig(tmp_path / "account", "first")),
                "POD_NAMESPACE": NAMESPACE,
            }
            words = ("epp", "--config", str(file))
            async with command(tmp_path / "picker", *words, environ=environ) as picker:
                await picker.says("dynamo-router ready")
                gateway = Gateway(tmp_path / "envoy", f"127.0.0.1:{grpc}", (), tls=True)
                try:
                    await gateway.come_back()
                    await _requests_go_to_pods(gateway.url, f"127.0.0.1:{http}", (first, second))
                    await delete(server, PODS, "p1")
                    await until(lambda: _rows(f"127.0.0.1:{http}", 1), 30)
                finally:
                    gateway.kill()
                assert await picker.stop() == 0
        finally:
            await server.stop()


async def _rows(http: str, count: int) -> bool:
    rows = (await http_json(http, "/workers"))["workers"]
    return len([row for row in rows if row["state"] == "ready"]) == count


async def _requests_go_to_pods(url: str, http: str, engines: tuple[Engine, Engine]) -> None:
    await until(lambda: _rows(http, 2), 30)
    async with aiohttp.ClientSession() as session:
        for number in range(8):
            data = json.dumps({"model": MODEL, "prompt": [number] * 400}).encode()
            headers = {"x-llm-d-inference-objective": "chat"}
            async with session.post(f"{url}/v1/completions", data=data, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, engines[0].whole(data))
    assert all(engine.prompts for engine in engines)


def test_what_the_page_has_gateways_patch_is_what_the_notes_say() -> None:
    """The pool of llm-d is there already; its picker is named as the chart names the Service."""
    files = render.rendered(values_of("llm-d.md"), "picker", NAMESPACE)
    notes, page = files["NOTES.txt"], (PAGES / "llm-d.md").read_text()
    (wanted,) = re.findall(r"--type merge -p \\\n\s+'(\{.*\})'", page)
    (said,) = re.findall(r"--type merge -p \\\n\s+'(\{.*\})'", notes)
    assert json.loads(wanted) == json.loads(said)
    service = yaml.safe_load(files["service.yaml"])
    ref = json.loads(wanted)["spec"]["endpointPickerRef"]
    assert ref["name"] == service["metadata"]["name"]
    assert ref["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    assert "inferencepool.yaml" not in files
