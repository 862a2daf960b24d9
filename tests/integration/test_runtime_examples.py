"""The examples of docs/runtime.md as processes that meet in a folder."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import ROOT
from support.polling import until

PARTS = ["{'token_ids': [0]}", "{'token_ids': [1]}", "{'token_ids': [2]}"]


async def run(name: str, folder: Path, **streams: int) -> asyncio.subprocess.Process:
    environ = {**os.environ, "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder)}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(ROOT / "examples" / name), env=environ, **streams
    )


async def test_a_worker_of_ten_lines_and_a_client_of_five(tmp_path: Path) -> None:
    worker = await run("worker.py", tmp_path)
    try:
        instances = tmp_path / "v1" / "instances"
        await until(lambda: instances.is_dir() and any(instances.glob("dynamo*")), 60.0)
        for name in ("client.py", "kv_client.py"):
            client = await run(name, tmp_path, stdout=asyncio.subprocess.PIPE)
            async with asyncio.timeout(60):
                output, _ = await client.communicate()
            assert output.decode().splitlines() == PARTS
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await worker.wait() == 0
        assert not any(instances.glob("dynamo*"))
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


@pytest.fixture
def sigint_is_heeded() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, which processes inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_is_heeded")
async def test_ctrl_c_ends_an_example_without_a_traceback(tmp_path: Path) -> None:
    worker = await run("worker.py", tmp_path, stderr=asyncio.subprocess.PIPE)
    instances = tmp_path / "v1" / "instances"
    try:
        await until(lambda: instances.is_dir() and any(instances.glob("dynamo*")), 60.0)
        worker.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            _, errors = await worker.communicate()
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    assert worker.returncode in (0, 130) and b"Traceback" not in errors


async def test_a_client_without_a_worker_says_so_in_a_line(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    for name in ("client.py", "kv_client.py"):
        client = await run(name, tmp_path, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(60):
            output, errors = await client.communicate()
        assert (output, client.returncode) == (b"", 1)
        assert len(errors.splitlines()) == 1 and b"dynamo.backend.generate" in errors


def test_the_document_quotes_the_examples() -> None:
    document = (ROOT / "docs" / "runtime.md").read_text()
    for name in ("worker.py", "client.py", "kv_client.py"):
        code = (ROOT / "examples" / name).read_text().split('"""')[2].strip()
        assert f"```python\n{code}\n```" in document, f"docs/runtime.md quotes another {name}"
