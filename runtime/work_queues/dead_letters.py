"""DeadLetters: messages of a queue that no reader can do, kept for people to look at."""

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError

from ..kv_stores import STREAM_IN_USE, NatsConnection, StoreError

REASON, ERROR = "Dyn-Reason", "Dyn-Error"
"""Headers of a dead letter: a word for metrics, and the words for people."""
MOST = 1000
"""Then the oldest go."""
MAX_AGE_S = 86400.0
_MOST_TEXT = 500


class DeadLetters:
    """One stream, of its one subject."""

    def __init__(self, connection: NatsConnection, name: str) -> None:
        self._connection, self.name = connection, name
        self._is_there = False

    async def add(self, body: bytes, message_id: str, reason: str, error: str) -> None:
        """Keep one; of the same id one is kept. StoreError if it is lost."""
        config = StreamConfig(
            name=self.name,
            subjects=[self.name],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.MEMORY,
            discard=DiscardPolicy.OLD,
            max_msgs=MOST,
            max_age=MAX_AGE_S,
            num_replicas=1,
        )
        text = " ".join(error.split())[:_MOST_TEXT]
        headers = {REASON: reason, ERROR: text, "Nats-Msg-Id": message_id}
        try:
            if not self._is_there:
                try:
                    await self._connection.call(lambda js: js.add_stream(config))
                except APIError as failure:
                    if failure.err_code != STREAM_IN_USE:  # else it is as its operator wants it
                        raise
                self._is_there = True
            await self._connection.call(lambda js: js.publish(self.name, body, headers=headers))
        except (APIError, StoreError) as failure:
            self._is_there = False
            raise StoreError(f"NATS: no dead letter in {self.name}: {failure}") from None
