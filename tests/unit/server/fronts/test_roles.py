"""What of a router a front and the decider leave out, and what not."""

import asyncio
from pathlib import Path

from dynamo_router.server.config import ServeConfig
from dynamo_router.server.fronts import Decider, Front, FrontPlace
from dynamo_router.server.pool import ConfiguredPool
from dynamo_router.server.server_parts import ServerParts


async def test_a_front_shows_engines_the_key_that_they_ask_for(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("of-the-engines")
    secret.chmod(0o600)
    config = ServeConfig(worker_api_key_file=str(secret))
    front = Front(config, FrontPlace(0, 0, tmp_path))
    key = front._monitor._key
    assert key is not None and key.value == "of-the-engines"
    await front.close()
    await asyncio.sleep(0)


async def test_the_decider_asks_no_engine_to_load_for_requests_of_fronts(tmp_path: Path) -> None:
    parts = ServerParts(ServeConfig())
    pool = ConfiguredPool(parts)
    workers, page = pool.workers, parts.metrics.page(pool.metrics_pages)
    assert workers.decisions.on_held is not None
    Decider(workers, page, parts.turn_away, tmp_path, 2, parts.clock)
    assert workers.decisions.on_held is None
    await pool.close()
    await parts.close()
