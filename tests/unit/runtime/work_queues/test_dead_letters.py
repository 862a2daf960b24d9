"""DeadLetters on a real JetStream."""

import nats
import pytest
from support.servers.jetstream import JetStreamServer

from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection
from dynamo_router.runtime.work_queues.dead_letters import DeadLetters

pytestmark = pytest.mark.usefixtures("leaves_nothing")


async def test_a_stream_that_its_operator_has_changed_takes_letters(
    jetstream: JetStreamServer,
) -> None:
    """From a process that starts after the change."""
    client = await nats.connect(jetstream.url)
    streams = client.jetstream()
    for number in range(2):
        connection = NatsConnection(NatsAddress(jetstream.url))
        await DeadLetters(connection, "dead").add(b"x", str(number), "late", "it was late")
        await connection.close()
        info = await streams.stream_info("dead")
        assert info.state.messages == number + 1
        await streams.update_stream(info.config, max_msgs=7)
    await client.close()
