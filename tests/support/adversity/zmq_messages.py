"""Faults of single ZMQ messages on their way from a publisher to a subscriber. Pure, by a seed."""

from support.adversity.nats_messages import MessageFaults, MessageFilter

GREETING_BYTES = 64
CUT_SHORT = (b"\x01\xb0other", b"\x03" + (1 << 20).to_bytes(8, "big"))
"""Beginnings of messages, of 176 bytes and of 1 MiB: ZMQ takes what follows for their rest."""
_MORE, _LONG, _COMMAND = 1, 2, 4  # a frame's flags, by ZMTP 3.x


class ZmqMessageFilter(MessageFilter):
    """Cuts a stream of ZMTP into its messages, whose subject is the first frame."""

    def __init__(self, faults: MessageFaults) -> None:
        super().__init__(faults)
        self._greeting_left = GREETING_BYTES

    def __call__(self, data: bytes) -> bytes:
        self._unread += data
        passed = []
        if self._greeting_left:  # each side waits for parts of the other's
            passed.append(self._take(self._greeting_left))
            self._greeting_left -= len(passed[0])
        while not self._greeting_left and (found := self._first_message()) is not None:
            length, subject = found
            message = self._take(length)
            passed.append(message if subject is None else self._after_fault(subject, message))
        return b"".join(passed)

    def _first_message(self) -> tuple[int, bytes | None] | None:
        """The bytes of what is unread first, and its subject, if it is a message and no command;
        None while it is not all there."""
        unread, at = self._unread, 0
        subject: bytes | None = None
        while len(unread) >= at + 2:
            flags = unread[at]
            size = 8 if flags & _LONG else 1
            if len(unread) < at + 1 + size:
                return None
            begin = at + 1 + size
            end = begin + int.from_bytes(unread[at + 1 : begin], "big")
            if len(unread) < end:
                return None
            if flags & _COMMAND:
                return end, None
            if subject is None:
                subject = unread[begin:end]
            if not flags & _MORE:
                return end, subject
            at = end
        return None

    def _take(self, length: int) -> bytes:
        taken, self._unread = self._unread[:length], self._unread[length:]
        return taken
