"""Whose threads a router has that serves requests: on nghttp2 none of gRPC's own library."""

from pathlib import Path

from support.fake_engine import prompt
from support.polling import closed_after

from dynamo_router.bench.load import ServeProcess
from dynamo_router.transport.http2 import ClientChannel
from dynamo_router.workers.trtllm_proto import SERVICE

REQUESTS = 100
OURS = {"python", "libuv-worker"}
ARGUMENTS = ("--mockers=1", "--port=0", "--http-port=0", "--event-sources=none")


def threads(pid: int | None) -> set[str]:
    """The names of a process's threads."""
    return {each.read_text().strip() for each in Path(f"/proc/{pid}/task").glob("*/comm")}


async def test_no_thread_of_grpcs_own_library_carries_requests() -> None:
    """gRPC's library is imported for the names of its statuses; it works where it has threads."""
    async with ServeProcess(ARGUMENTS, workers=1, start_timeout_s=60.0) as router:
        async with closed_after(ClientChannel(router.grpc_address)) as channel:
            for n in range(REQUESTS):
                asked = prompt(f"r{n}").SerializeToString()
                assert [each async for each in channel.call(f"/{SERVICE}/Generate", asked)]
            others = {name for name in threads(router.pid) if not name.startswith("python")} - OURS
            assert not others
