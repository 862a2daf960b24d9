"""Faults of single NATS messages on their way from the server to a client. Pure, by a seed."""

from random import Random

LINE_END = b"\r\n"


class MessageFaults:
    """What happens to messages whose subject ends as given; the rest passes.

    Shares of them, as they are set: `loss` never arrive, `twice` arrive twice, `late` arrive
    behind the next one. A connection's bytes go through one `filter`.
    """

    def __init__(self, subject_end: bytes) -> None:
        self._subject_end = subject_end
        self.set(0)

    def set(self, seed: int, *, loss: float = 0.0, twice: float = 0.0, late: float = 0.0) -> None:
        """Begin anew with a seed."""
        self._random = Random(seed)
        self.loss, self.twice, self.late = loss, twice, late

    def filter(self) -> "MessageFilter":
        return MessageFilter(self)

    def fate(self, subject: bytes) -> tuple[bool, bool, bool]:
        """Whether a message is lost, doubled, delayed."""
        if not subject.endswith(self._subject_end):
            return False, False, False
        # Three draws for each, so that one share does not move the others' choices.
        chance = self._random.random
        return chance() < self.loss, chance() < self.twice, chance() < self.late


class MessageFilter:
    """Cuts a stream of the protocol into its messages: call it with bytes, in any portions."""

    def __init__(self, faults: MessageFaults) -> None:
        self._faults = faults
        self._unread = b""
        self._late = b""

    def __call__(self, data: bytes) -> bytes:
        self._unread += data
        passed = []
        while (end := self._unread.find(LINE_END)) >= 0:
            line = self._unread[:end]
            words = line.split()
            length = end + len(LINE_END)
            is_message = bool(words) and words[0].upper() in (b"MSG", b"HMSG")
            if is_message:
                length += int(words[-1]) + len(LINE_END)
                if len(self._unread) < length:
                    break
            message, self._unread = self._unread[:length], self._unread[length:]
            passed.append(self._after_fault(words[1], message) if is_message else message)
        return b"".join(passed)

    def _after_fault(self, subject: bytes, message: bytes) -> bytes:
        lost, twice, late = self._faults.fate(subject)
        if lost:
            return b""
        if late and not self._late:
            self._late = message
            return b""
        waited, self._late = self._late, b""
        return message * (1 + twice) + waited
