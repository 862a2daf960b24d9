"""A client: calls an instance of dynamo.backend.generate."""

import asyncio
import sys

from dynamo_router.base.errors import RouterError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import open_store


async def main() -> None:
    async with DistributedRuntime(open_store()) as runtime:
        client = await runtime.client("dynamo.backend.generate")
        async for part in client.round_robin({"max_tokens": 3}):
            print(part)


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
except (RouterError, OSError) as error:
    sys.exit(f"{sys.argv[0]}: {error}")
