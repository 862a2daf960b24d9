"""The command doctor in front of engines of which some cannot be used."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.processes import command


def doctor(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by check."""
    line = [sys.executable, "-m", "dynamo_router", "doctor", "--json", "--port", "0"]
    line += ["--http-port", "0", "--wait-s", "15", *words]
    ran = subprocess.run(line, capture_output=True, check=False, timeout=90)
    answer = json.loads(ran.stdout)
    assert ran.stderr == b"" and answer["ok"] is (ran.returncode == 0)
    return ran.returncode, {row["check"]: row for row in answer["findings"]}


async def test_what_is_wrong_is_named_with_advice(tmp_path: Path) -> None:
    port, silent = free_port(), free_port()
    at, events = f"127.0.0.1:{port}", f"tcp://127.0.0.1:{silent}"
    words = ("--port", str(port), "--block-size", "16")
    async with command(tmp_path / "engine", "mocker", *words) as engine:
        await engine.says("ready")
        code, found = doctor("--worker", f"grpc://{at}", "--block-size", "16")
        assert (code, found[f"worker {at}"]["state"]) == (0, "ok")
        assert found[f"events of {at}"]["state"] == "ok"
        code, found = doctor("--worker", f"grpc://{at}?events={events}", "--block-size", "16")
        assert code == 1 and f"nothing listens at {events}" in found[f"events of {at}"]["text"]
        code, found = doctor("--worker", f"grpc://{at}", "--block-size", "32")
        assert code == 1 and "block size is 16" in found[f"worker {at}"]["text"]
        assert "block_size" in found[f"worker {at}"]["advice"]


def test_a_deployment_with_nothing_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, gone = taken.getsockname()[1], f"127.0.0.1:{free_port()}"
        words = ("--worker", f"openai+http://{gone}", "--nats", f"nats://{gone}")
        code, found = doctor(*words, "--admin-port", str(port), "--wait-s", "2")
    assert code == 1
    failed = {check for check, row in found.items() if row["state"] == "failed"}
    assert failed == {"port admin_port", "NATS", f"worker {gone}"}
    assert all(found[check]["advice"] for check in failed)
