"""With a file of callers, a gateway needs the token of one with the role `client`."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from support.epp.engine import Engine
from support.epp.picking import served_picker, settings

from dynamo_router.frontend.epp.proto import processing_pb2 as pb

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
TOKEN, SCRAPER = "gateway-0123456789", "scraper-0123456789"


@pytest.mark.parametrize(
    ("token", "code", "text"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed"),
        ("x" * 16, grpc.StatusCode.UNAUTHENTICATED, "the bearer token is not known"),
        (SCRAPER, grpc.StatusCode.PERMISSION_DENIED, "it needs the role client"),
        (TOKEN, grpc.StatusCode.OK, ""),
    ],
)
async def test_a_gateway_needs_its_token(
    tmp_path: Path, token: str | None, code: grpc.StatusCode, text: str
) -> None:
    file = tmp_path / "tokens.toml"
    callers = (("gateway", TOKEN, "client"), ("scraper", SCRAPER, "metrics"))
    file.write_text(
        "".join(
            f'[[caller]]\nname = "{name}"\ntoken = "{secret}"\nroles = ["{role}"]\n'
            for name, secret, role in callers
        )
    )
    file.chmod(0o600)
    async with Engine() as engine:
        config = settings([engine], auth_tokens=str(file))
        async with served_picker(config, 1) as server:
            listener: Any = server.listeners[0]
            async with aio.insecure_channel(listener.address) as channel:
                metadata = () if token is None else (("authorization", f"Bearer {token}"),)
                call = channel.stream_stream(METHOD, None, None)(metadata=metadata)
                if code is grpc.StatusCode.OK:
                    request = pb.ProcessingRequest()
                    request.request_headers.end_of_stream = True
                    await call.write(request.SerializeToString())
                    assert await call.read() is not aio.EOF
                    await call.done_writing()
                assert await call.code() is code
                assert text in (await call.details() or "")
