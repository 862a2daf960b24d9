"""WorkQueue, before a JetStream whose answers are none."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.js.api import RetentionPolicy

from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection, StoreError
from dynamo_router.runtime.work_queues import GroupSettings, QueueSettings, WorkQueue

GROUP = GroupSettings(name="g", subject="s.queue")
Call = Callable[[WorkQueue], Awaitable[Any]]


def queue_before(**answers: Any) -> WorkQueue:
    """A queue whose JetStream answers each call of nats-py with one of these."""

    def answering(answer: Any) -> Any:
        async def call(*asked: Any, **named: Any) -> Any:
            return answer

        return call

    jetstream = SimpleNamespace(**{key: answering(each) for key, each in answers.items()})
    connection = NatsConnection(NatsAddress("nats://127.0.0.1:1"))

    async def link() -> Any:
        return SimpleNamespace(jetstream=lambda timeout: jetstream)

    connection.link = link  # type: ignore[method-assign]
    return WorkQueue(connection, QueueSettings(stream="s", subjects=("s.queue",)))


def info(**config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(**config) if config else None, state=None)


@pytest.mark.parametrize(
    ("call", "answers"),
    [
        (lambda queue: queue.messages(), {"stream_info": info()}),
        (lambda queue: queue.messages(), {"stream_info": None}),
        (lambda queue: queue.message(1), {"get_msg": SimpleNamespace(data="text")}),
        (lambda queue: queue.ensure(), {"stream_info": info()}),
        (
            lambda queue: queue.ensure(),
            {"stream_info": info(retention=RetentionPolicy.WORK_QUEUE, subjects=3, sealed=False)},
        ),
        (lambda queue: queue.ensure_group(GROUP), {"consumer_info": info()}),
        (
            lambda queue: queue.publish("s.queue", b"", "1"),
            {"publish": SimpleNamespace(duplicate=None)},
        ),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_failure_of_nats(
    call: Call, answers: dict[str, Any]
) -> None:
    queue = queue_before(**cast(Any, answers))
    with pytest.raises(StoreError, match="its answer cannot be read") as failed:
        await call(queue)
    assert failed.value.transient
