"""Whose threads a router has that serves requests: on nghttp2 none of gRPC's own library."""

from pathlib import Path

import pytest
from support.fake_engine import prompt

from dynamo_router.bench.load import ServeProcess
from dynamo_router.transport.http2 import ClientChannel
from dynamo_router.workers.channels import GRPC_AIO, NGHTTP2
from dynamo_router.workers.trtllm_proto import SERVICE

REQUESTS = 100
OURS = {"python", "libuv-worker"}
ARGUMENTS = ("--mockers=1", "--port=0", "--http-port=0", "--event-sources=none")


def threads(pid: int | None) -> set[str]:
    """The names of a process's threads."""
    return {each.read_text().strip() for each in Path(f"/proc/{pid}/task").glob("*/comm")}


@pytest.mark.parametrize("path", [NGHTTP2, GRPC_AIO])
async def test_requests_are_carried_by_what_is_asked_for(path: str) -> None:
    """gRPC's library is imported for the names of its statuses; it works where it has threads."""
    arguments = (*ARGUMENTS, f"--data-path={path}")
    async with ServeProcess(arguments, workers=1, start_timeout_s=60.0) as router:
        channel = ClientChannel(router.grpc_address)
        try:
            for n in range(REQUESTS):
                asked = prompt(f"r{n}").SerializeToString()
                assert [each async for each in channel.call(f"/{SERVICE}/Generate", asked)]
            others = {name for name in threads(router.pid) if not name.startswith("python")} - OURS
            assert bool(others) == (path == GRPC_AIO), others
        finally:
            await channel.close()
