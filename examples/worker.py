"""A worker: serves dynamo.backend.generate, found through the store of DYN_DISCOVERY_BACKEND."""

import asyncio
import sys

from dynamo_router.base.errors import RouterError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import open_store


async def main() -> None:
    runtime = DistributedRuntime(open_store())

    @runtime.endpoint("dynamo.backend.generate")
    async def generate(body, context):
        for token in range(body["max_tokens"]):
            yield {"token_ids": [token]}

    async with runtime:
        await runtime.run()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
except (RouterError, OSError) as error:
    sys.exit(f"{sys.argv[0]}: {error}")
