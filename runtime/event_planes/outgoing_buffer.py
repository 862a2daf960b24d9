"""What waits to be sent while an event plane's carrier is away or slow."""

from collections import deque


class OutgoingBuffer:
    """A queue of (subject, payload) bounded in messages and bytes; the oldest give way."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def push(self, subject: str, payload: bytes) -> int:
        """Append; returns how many messages were dropped for it, itself included."""
        self._messages.append((subject, payload))
        self._bytes += len(payload)
        dropped = 0
        while len(self._messages) > self._max_messages or self._bytes > self._max_bytes:
            self.pop()
            dropped += 1
        return dropped

    def pop(self) -> tuple[str, bytes]:
        subject, payload = self._messages.popleft()
        self._bytes -= len(payload)
        return subject, payload

    def put_back(self, subject: str, payload: bytes) -> None:
        """Undo a pop."""
        self._messages.appendleft((subject, payload))
        self._bytes += len(payload)

    def clear(self) -> int:
        dropped = len(self._messages)
        self._messages.clear()
        self._bytes = 0
        return dropped
