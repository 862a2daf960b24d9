"""An engine behind a gateway that caches prompts as vLLM does, and publishes that over ZMQ."""

import itertools
import json

from support.epp.engine import Engine, Got
from support.kv_events.engine_events import stored
from support.kv_events.zmq_publisher import ZmqPublisher


class CachingEngine(Engine):
    """Of prompts that are token ids. It forgets nothing."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.publisher = ZmqPublisher()
        self._block = block
        self._held: dict[tuple[int, ...], int] = {}
        self._hashes = itertools.count(1)
        self.blocks = self.cached_blocks = 0
        """of the prompts so far: all, and those that were there"""

    @property
    def endpoint(self) -> str:
        """As a picker is given it."""
        return f"{self.address}?events={self.publisher.url}&replay={self.publisher.replay_url}"

    async def start(self) -> None:
        await super().start()
        self.publisher.start()

    async def stop(self) -> None:
        await super().stop()
        await self.publisher.stop()

    async def take(self, got: Got) -> None:
        tokens, size = json.loads(got.body)["prompt"], self._block
        ends = [end for end in range(size, len(tokens) + 1, size)]
        known = [end for end in ends if tuple(tokens[:end]) in self._held]
        self.blocks += len(ends)
        self.cached_blocks += len(known)
        fresh = ends[len(known) :]
        if not fresh:
            return
        hashes = [next(self._hashes) for _ in fresh]
        parent = self._held[tuple(tokens[: known[-1]])] if known else None
        begin = known[-1] if known else 0
        for end, name in zip(fresh, hashes, strict=True):
            self._held[tuple(tokens[:end])] = name
        await self.publisher.publish(stored(hashes, tokens[begin : fresh[-1]], size, parent))
