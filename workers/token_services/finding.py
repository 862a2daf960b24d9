"""Which service an engine over gRPC has."""

from typing import Any

from ...base.errors import StatusCode
from ...transport.security import ClientTls
from ..channels import ConnectionPolicy
from ..failures import EngineCallError
from ..trtllm_client import EngineIdentity, TrtllmClient
from ..worker_url import WorkerUrl
from .open_engine import OpenEngineClient
from .sglang import SglangClient
from .vllm import VllmClient

_CLIENTS = (TrtllmClient, VllmClient, SglangClient, OpenEngineClient)


async def find_service(
    url: WorkerUrl,
    but: type[TrtllmClient],
    connection: ConnectionPolicy,
    tls: ClientTls | None,
    block_size: int,
    *,
    timeout: float,
) -> tuple[TrtllmClient, EngineIdentity] | None:
    """A client of the service that the engine has, beside `but`, and what it says of itself; None
    if it has none that we know. Raises what check_health does."""
    for kind in _CLIENTS:
        if kind is but:
            continue
        more = {} if kind is TrtllmClient else _stated(url, block_size)
        client = kind(url.address, connection, tls, url.tls_name, **more)
        try:
            return client, await client.check_health(timeout=timeout)
        except BaseException as error:
            await client.close()
            if not is_unknown(error):
                raise
    return None


def is_unknown(error: BaseException) -> bool:
    """Whether an engine answers that it has no such service."""
    return isinstance(error, EngineCallError) and error.code() is StatusCode.UNIMPLEMENTED


def _stated(url: WorkerUrl, block_size: int) -> dict[str, Any]:
    return {"block_size": block_size, "transfer": url.transfer, "parallel": url.parallel}
