"""docs/quickstart/envoy.md, followed: its configuration, its commands, on ports that are free."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.epp.engine import MODEL, Engine
from support.free_port import free_port
from support.places import ROOT
from support.polling import until
from support.processes import command
from support.servers.grpc_peers.envoy import Envoy

from dynamo_router.engines.mocker import OWN_MODEL

PAGE = (ROOT / "docs" / "quickstart" / "envoy.md").read_text()
ENGINES = ("10.0.0.1:8000", "10.0.0.2:8000")


def block(kind: str, number: int = 0) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[number]


def moved(config: Any, places: dict[str, str]) -> Any:
    """A configuration of Envoy with other addresses."""
    if isinstance(config, dict):
        if "address" in config and "port_value" in config:
            old = f"{config['address']}:{config['port_value']}"
            host, _, port = places[old].rpartition(":")
            return {"address": host, "port_value": int(port)}
        return {key: moved(value, places) for key, value in config.items()}
    return [moved(each, places) for each in config] if isinstance(config, list) else config


def words_of(line: str) -> list[str]:
    return shlex.split(line.replace("\\\n", " ").removeprefix("$ "))


async def test_the_page_works(tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    async with Engine() as first, Engine() as second, aiohttp.ClientSession() as session:
        ports = [free_port() for _ in range(3)]
        places = {
            "127.0.0.1:8080": f"127.0.0.1:{ports[0]}",
            "127.0.0.1:9002": f"127.0.0.1:{ports[1]}",
            ENGINES[0]: first.address,
            ENGINES[1]: second.address,
        }
        words = words_of(block("console"))[1:]
        for old in ENGINES:
            words = [word.replace(old, places[old]).partition("?")[0] for word in words]
        words[words.index("/models/Qwen3-8B")] = str(OWN_MODEL)
        free = ["--grpc-port", str(ports[1]), "--grpc-health-port", "0", "--http-port"]
        config = moved(yaml.safe_load(block("yaml")), places)
        envoy = Envoy(tmp_path / "envoy", ports[0], config)
        async with command(tmp_path / "picker", *words, *free, str(ports[2])) as picker:
            await picker.says("dynamo-router ready")
            try:
                await envoy.come_back()
                _, curl = block("console", 1).split("$ ")[1:]
                asked = json.loads(words_of(curl)[-1]) | {"model": MODEL}
                url = f"http://{places['127.0.0.1:8080']}/v1/chat/completions"
                data = json.dumps(asked).encode()

                async def answered() -> bool:
                    async with session.post(url, data=data) as answer:
                        return answer.status == 200 and await answer.read() == first.whole(data)

                await until(answered)
                seen = f"http://127.0.0.1:{ports[2]}"
                async with session.get(f"{seen}/workers") as told:
                    rows = (await told.json())["workers"]
                assert {row["address"] for row in rows} == {first.address, second.address}
                assert {row["state"] for row in rows} == {"ready"}
                async with session.get(f"{seen}/dashboard/state") as told:
                    assert (await told.json())["requests"]
                async with session.get(f"{seen}/metrics") as told:
                    page = await told.text()
                assert 'dynamo_router_http_requests_total{model="tiny"' in page
            finally:
                await asyncio.to_thread(envoy.kill)
