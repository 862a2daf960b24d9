"""A client in mode kv: KvRouter chooses among those who serve dynamo.backend.generate."""

import asyncio
import sys

from dynamo_router import KvInstanceSelector, KvRouter, KvRouterConfig
from dynamo_router.base.errors import RouterError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import open_store


async def main() -> None:
    config = KvRouterConfig(block_size=16, use_kv_events=False)  # predicts what is cached
    with KvRouter(config) as router:
        async with DistributedRuntime(open_store()) as runtime:
            selector = KvInstanceSelector(router)
            client = await runtime.client("dynamo.backend.generate", selector=selector)
            async for part in client.kv({"token_ids": list(range(64)), "max_tokens": 3}):
                print(part)


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
except (RouterError, OSError) as error:
    sys.exit(f"{sys.argv[0]}: {error}")
