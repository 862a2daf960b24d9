"""`serve` given a URL with a password: the password is in nothing that it lets others see."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.free_port import free_port
from support.processes import command

PASSWORD = "S3cretPw"
SHOWN = "nats://alice:***@127.0.0.1"


async def http_text(address: str, path: str) -> str:
    """The body of an answer, whatever its status."""

    def ask() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:  # /health: no worker, so not ready
            return error.read().decode()

    return await asyncio.to_thread(ask)


def nats_url(port: int | str) -> str:
    return f"nats://alice:{PASSWORD}@127.0.0.1:{port}"


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_router_shows_no_password(tmp_path: Path, log_format: str) -> None:
    words = ["serve", "--port", "0", "--http-port", "0", "--nats", nats_url(free_port())]
    words += ["--worker", f"grpc://127.0.0.1:{free_port()}"]
    words += ["--log-level", "debug", "--log-format", log_format]
    async with command(tmp_path, *words) as router:
        ready = (await router.says("dynamo-router ready")).split()
        assert ready[-1].startswith(SHOWN)
        await router.says("not reachable")  # the log has named the server
        address = ready[ready.index("http") + 1]
        health = await http_text(address, "/health")
        assert SHOWN in health
        metrics = await http_text(address, "/metrics")
        assert "dynamo_router_" in metrics
        assert await router.stop() == 0
        text = router.text
    assert text.count(SHOWN) >= 2
    assert PASSWORD not in text + health + metrics


async def test_the_config_command_shows_no_password(tmp_path: Path) -> None:
    async with command(tmp_path, "config", "--nats", nats_url(4222)) as shown:
        assert await shown.ended() == 0
        assert f"{SHOWN}:4222" in shown.text
        assert PASSWORD not in shown.text


async def test_an_error_about_the_url_shows_no_password(tmp_path: Path) -> None:
    words = ["--port", "0", "--http-port", "0", "--nats", nats_url("none")]
    async with command(tmp_path, "serve", *words) as router:
        assert await router.ended() != 0
        assert SHOWN in router.text
        assert PASSWORD not in router.text
