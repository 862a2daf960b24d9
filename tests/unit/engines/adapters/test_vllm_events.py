"""vLLM's events followed over ZMQ: lost ones are asked for again, and what is lost is forgotten."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.kv_events.engine_events import removed, stored
from support.kv_events.zmq_publisher import ZmqPublisher
from support.polling import until

from dynamo_router.engines.adapters.cache_mirror import CacheMirror
from dynamo_router.engines.adapters.vllm_events import VllmEvents
from dynamo_router.engines.serving import CacheCleared, KvEvent

SIZE = 4


class Follower:
    def __init__(self, publisher: ZmqPublisher) -> None:
        self.mirror, self.heard = CacheMirror(SIZE), list[KvEvent]()
        self.events = VllmEvents(
            publisher.url,
            publisher.replay_url,
            self.mirror,
            lambda rank, changes: self.heard.extend(changes),
        )

    def holds(self, *hashes: int) -> bool:
        return {block.block_hash for block in self.mirror.cached_blocks(0, "device")} == set(hashes)


@asynccontextmanager
async def following(publisher: ZmqPublisher) -> AsyncIterator[Follower]:
    follower = Follower(publisher)
    try:
        yield follower
    finally:
        await follower.events.close()


def chain(block_hash: int, parent: int | None = None) -> dict[str, object]:
    tokens = range(10 * block_hash, 10 * block_hash + SIZE)
    return stored([block_hash], list(tokens), SIZE, parent)


async def test_what_was_told_before_and_what_gets_lost_is_asked_for() -> None:
    async with ZmqPublisher() as publisher:
        await publisher.publish(chain(1))
        async with following(publisher) as follower:
            await until(lambda: follower.holds(1))
            await publisher.publish(chain(2, 1))
            await until(lambda: follower.holds(1, 2))
            publisher.lose = 2
            await publisher.publish(removed(2))
            await publisher.publish(chain(3, 1))
            await publisher.publish(chain(4, 3))
            await until(lambda: follower.holds(1, 3, 4))
            assert follower.events.gaps == 0
            assert CacheCleared() not in follower.heard


async def test_what_nobody_keeps_any_more_is_forgotten() -> None:
    async with ZmqPublisher(kept=1) as publisher:
        await publisher.publish(chain(1))
        async with following(publisher) as follower:
            await until(lambda: follower.holds(1))
            publisher.lose = 2
            await publisher.publish(removed(1))
            await publisher.publish(chain(5))
            await publisher.publish(chain(6))
            await until(lambda: follower.holds(6))
            assert follower.events.gaps == 1 and CacheCleared() in follower.heard


async def test_an_engine_that_has_published_nothing_is_waited_for() -> None:
    async with ZmqPublisher() as publisher:
        async with following(publisher) as follower:
            await until(lambda: publisher.asked)
            await publisher.publish(chain(1))
            await until(lambda: follower.holds(1))
            assert not follower.events.gaps and CacheCleared() not in follower.heard


async def test_what_cannot_be_read_is_no_end() -> None:
    async with ZmqPublisher() as publisher:
        await publisher.publish(chain(1))
        async with following(publisher) as follower:
            await until(lambda: follower.holds(1))
            await publisher.publish_bytes(b"\xc1")
            await publisher.publish(chain(5))
            await until(lambda: follower.holds(5))
            assert CacheCleared() in follower.heard


async def test_an_engine_that_was_started_anew_is_followed_from_its_beginning() -> None:
    async with ZmqPublisher() as publisher:
        async with following(publisher) as follower:
            for number in range(1, 4):
                await publisher.publish(chain(number))
            await until(lambda: follower.holds(1, 2, 3))
            await publisher.stop()
            publisher.start()
            await publisher.publish(chain(7))
            await until(lambda: follower.holds(7))


async def test_events_of_another_block_size_are_refused_and_nothing_is_claimed() -> None:
    async with ZmqPublisher() as publisher:
        await publisher.publish(chain(1))
        async with following(publisher) as follower:
            await until(lambda: follower.holds(1))
            await publisher.publish(stored([2], list(range(8)), 8))
            await until(lambda: follower.holds())
            assert follower.heard[-1] == CacheCleared()
