"""The embedding example runs as the docs say, and they quote it truly."""

import asyncio
import re
import sys
from pathlib import Path

from support.places import ROOT
from support.processes import command

from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats


async def test_the_example_finds_the_worker_that_has_the_prefix(tmp_path: Path) -> None:
    async with EmbeddedNats() as nats:
        async with command(
            tmp_path, "mocker", "--workers", "3", "--port", "0", "--nats", nats.url,
            "--speedup-ratio", "20",
        ) as engines:  # fmt: skip
            await engines.says("ready")
            addresses = re.findall(r"grpc://(\S+)", engines.text)
            assert len(addresses) == 3
            example = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(ROOT / "examples" / "embed.py"), nats.url, *addresses,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
            )  # fmt: skip
            async with asyncio.timeout(60):
                output = (await example.communicate())[0].decode()
            assert example.returncode == 0, output
    chosen = re.findall(r"-> worker (\d+), (\d+) blocks cached there", output)
    assert [int(blocks) for _, blocks in chosen] == [0, 10, 10], output
    assert len({worker for worker, _ in chosen}) == 1
    assert len(re.findall(r"answer \d: \[\d+(, \d+){7}\]", output)) == 3


def test_the_docs_quote_the_example() -> None:
    quote = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "embed.md").read_text(), re.DOTALL)
    assert quote is not None
    source = (ROOT / "examples" / "embed.py").read_text()
    lines = [line for line in quote[1].splitlines() if line.strip() not in ("", "...")]
    assert len(lines) >= 15 and [line for line in lines if line not in source] == []
