"""aiperf, NVIDIA's load generator, unchanged, against mock engines behind the frontend.

Needs aiperf: set AIPERF_PYTHON to a Python that has it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.processes import command, output_of

from dynamo_router.engines.mocker import OWN_MODEL

PYTHON = os.environ.get("AIPERF_PYTHON")
REQUESTS, PROMPT, ANSWER = 24, 100, 8
DEADLINE_S = 240.0
REVISION = "0" * 40

pytestmark = pytest.mark.skipif(PYTHON is None, reason="AIPERF_PYTHON names no Python with aiperf")


def hub(folder: Path) -> Path:
    """Our tokenizer as the model own/tiny in a cache of Hugging Face's hub: aiperf takes no
    other."""
    model = folder / "models--own--tiny"
    shutil.copytree(OWN_MODEL, model / "snapshots" / REVISION)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(REVISION)
    return folder


async def profile(folder: Path, url: str, kind: str, *more: str) -> dict[str, Any]:
    """What it measured."""
    assert PYTHON is not None
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub(folder / "hub"))}
    await output_of(
        PYTHON, "-m", "aiperf", "profile", "-m", "tiny", "--url", url, "--endpoint-type", kind,
        "--tokenizer", "own/tiny", "--isl", str(PROMPT), "--osl", str(ANSWER),
        "--request-count", str(REQUESTS), "--concurrency", "4", "--extra-inputs",
        "ignore_eos:true", "--artifact-dir", "told", "--ui", "none", *more,
        env=environ,
        timeout_s=DEADLINE_S,
        cwd=folder,
    )  # fmt: skip
    told: dict[str, Any] = json.loads((folder / "told/profile_export_aiperf.json").read_text())
    return told


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("how", [(), ("--streaming",)], ids=["whole", "streamed"])
async def test_aiperf(tmp_path: Path, kind: str, how: tuple[str, ...]) -> None:
    fleet = ("serve", "--mockers", "4", "--http-frontend", "0", "--model-id", "tiny")
    async with command(tmp_path / "serve", *fleet, "--port", "0", "--http-port", "0") as serve:
        ready = (await serve.says("dynamo-router ready")).split()
        url = f"http://{ready[ready.index('openai') + 1]}"
        told = await profile(tmp_path, url, kind, *how)
    assert told["error_summary"] == []
    assert told["request_count"]["avg"] == REQUESTS
    assert told["usage_completion_tokens"]["avg"] == ANSWER
    # The chat template has some tokens of its own.
    template = told["usage_prompt_tokens"]["avg"] - PROMPT
    assert template > 0 if kind == "chat" else template == 0
    assert ("time_to_first_token" in told) == bool(how)
