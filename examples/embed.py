"""A frontend that uses KvRouter as a library: its own loop, its own calls to the engines.

nats-server &
dynamo-router mocker --workers 3 --port 9100 --nats nats://127.0.0.1:4222 &
python examples/embed.py nats://127.0.0.1:4222 127.0.0.1:9100 127.0.0.1:9101 127.0.0.1:9102
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator

import grpc.aio
import nats
from smg_grpc_proto.generated import trtllm_service_pb2 as pb
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub

from dynamo_router import KvRouter, KvRouterConfig

EVENTS = "namespace.dynamo.component.backend.endpoint.generate.kv-events"


class Frontend:
    """Routes prompts to engines; knows their caches from the KV events they publish."""

    def __init__(self, block_size: int = 64) -> None:
        self.router = KvRouter(KvRouterConfig(block_size=block_size))
        self.engines: dict[int, TrtllmServiceStub] = {}

    async def connect(self, events: nats.NATS, addresses: list[str]) -> None:
        async def on_event(message: nats.aio.msg.Msg) -> None:
            self.router.apply_event(message.data)

        await events.subscribe(EVENTS, cb=on_event)
        for address in addresses:
            stub = TrtllmServiceStub(grpc.aio.insecure_channel(address))
            call = stub.HealthCheck(pb.HealthCheckRequest())
            metadata = dict(await call.initial_metadata())
            worker_id = int(metadata["x-dynamo-worker-id"])
            self.engines[worker_id] = stub
            self.router.add_worker(worker_id, address=address)

    async def generate(self, token_ids: list[int], max_tokens: int) -> AsyncIterator[int]:
        request_id = uuid.uuid4().hex
        worker_id, rank, overlap = self.router.best_worker(token_ids, request_id)
        print(f"{len(token_ids)} tokens -> worker {worker_id}, {overlap} blocks cached there")
        request = pb.GenerateRequest(request_id=request_id, max_tokens=max_tokens, streaming=True)
        request.tokenized.input_token_ids.extend(token_ids)
        call = self.engines[worker_id].Generate(request)
        try:
            async for response in call:
                self.router.mark_prefill_complete(request_id)
                for token in response.chunk.token_ids:
                    yield token
        finally:
            call.cancel()  # the engine stops, even if only our task was cancelled
            self.router.free(request_id)  # however the stream ended


async def main(nats_url: str, *addresses: str) -> None:
    async def on_error(error: Exception) -> None:
        print(f"NATS: {error}", file=sys.stderr)

    frontend = Frontend()
    events = await nats.connect(nats_url, error_cb=on_error, max_reconnect_attempts=1)
    await frontend.connect(events, list(addresses))
    system_prompt = list(range(1000, 1640))
    for turn in range(3):
        prompt = system_prompt + [turn] * 100
        answer = [token async for token in frontend.generate(prompt, max_tokens=8)]
        print(f"answer {turn}: {answer}")
        await events.flush()  # the engine's events came before its answer: now they are applied
    await events.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except (grpc.aio.AioRpcError, nats.errors.Error, OSError) as error:
        sys.exit(f"{sys.argv[0]}: {error}")
