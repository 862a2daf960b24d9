"""Each gRPC call that is refused before its method has it has one line in the access log."""

import asyncio
from pathlib import Path
from typing import Any

from grpc import aio
from structlog.testing import capture_logs
from support.calls import messages_of
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.serving import PROMPT, Ports, serving

from dynamo_router.process.logs import UNLIMITED
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.trtllm_proto import SERVICE

ROUTER = "/dynamo_router.v1.RouterService"
GENERATE, ABORT = f"/{SERVICE}/Generate", f"/{SERVICE}/Abort"
ANN = (("authorization", "Bearer ann-0123456789abcdef"),)
LIMITS = CallerLimits(
    max_requests=1, max_questions=8, max_share_per_caller=1.0, message_timeout_s=0.3
)
SELECT = rpb.SelectWorkerRequest(token_ids=PROMPT).SerializeToString()
HUGE = (*ANN, ("x-much", "y" * 9000))
JUNK = b"\xff"

# A call: its method, what it sends (None: nothing, and does not end), and its metadata; its status.
REFUSED: dict[str, tuple[str, bytes | None, Any, str]] = {
    "no caller": (GENERATE, b"", (), "UNAUTHENTICATED"),
    "no caller of a decision": (f"{ROUTER}/SelectWorker", SELECT, (), "UNAUTHENTICATED"),
    "no role": (f"{ROUTER}/AddWorker", b"", ANN, "PERMISSION_DENIED"),
    "no role for a decision": (f"{ROUTER}/SelectWorker", SELECT, ANN, "PERMISSION_DENIED"),
    "no room for its metadata": (GENERATE, b"", HUGE, "RESOURCE_EXHAUSTED"),
    "no room": (GENERATE, b"", ANN, "RESOURCE_EXHAUSTED"),
    "no message": (ABORT, None, ANN, "DEADLINE_EXCEEDED"),
    "garbage": (ABORT, JUNK, ANN, "INVALID_ARGUMENT"),
    "a message beyond all limits": (ABORT, bytes(40 << 20), ANN, "RESOURCE_EXHAUSTED"),
    "a message that is too long for its method": (ABORT, bytes(1 << 20), ANN, "INVALID_ARGUMENT"),
    "no such method": ("/no.Such/Method", b"", ANN, "UNIMPLEMENTED"),
}


async def ends(channel: Any, method: str, sent: bytes | None, metadata: Any) -> str:
    """How a call ends."""
    if sent is None:
        call = channel.stream_stream(method, None, None)(metadata=metadata)
    else:
        call = channel.unary_stream(method, None, None)(sent, metadata=metadata)
    try:
        await messages_of(call)
    except aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_each_has_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(
        '[[caller]]\nname = "ann"\ntoken = "ann-0123456789abcdef"\nroles = ["client"]\n'
    )
    path.chmod(0o600)
    seen = ObservabilityConfig(access_log=True)
    engine = FakeEngine(stall)
    async with serving(engine, auth_tokens=str(path), observability=seen, peers=LIMITS) as ports:
        options = (("grpc.max_send_message_length", -1),)
        async with aio.insecure_channel(ports.server.grpc_address, options=options) as channel:
            body = prompt("one").SerializeToString()
            holding = asyncio.create_task(ends(channel, GENERATE, body, ANN))
            await until(lambda: engine.requests)
            for name, (method, sent, metadata, status) in REFUSED.items():
                with capture_logs() as logs:
                    assert await ends(channel, method, sent, metadata) == status, name
                    await no_more_calls(ports)
                (line,) = [line for line in logs if line["event"] == "request ended"]
                route = "" if name == "no such method" else method
                told = line["status"], line["route"], line["client"]
                assert told == (status, route, "127.0.0.1"), name
                assert line["error"] and line[UNLIMITED], name
            engine.go.set()
            assert await holding == "OK"


async def no_more_calls(ports: Ports) -> None:
    """Until the calls that were refused are over: the one that takes all the room is left."""
    await until(lambda: ports.server.grpc._listener.calls_open == 1)
