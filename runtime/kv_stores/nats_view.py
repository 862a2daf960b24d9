"""What is in a bucket of NATS, by its messages: keys are there as long as their leases."""

from .nats_messages import Kind, Record
from .store import Deleted, Entry


class BucketView:
    """Take in every message of the stream, in order; out come the changes that readers see."""

    def __init__(self) -> None:
        self._keys: dict[str, Entry] = {}
        self._leases: set[int] = set()
        self.revision = 0

    def take_in(self, record: Record) -> list[Entry | Deleted]:
        self.revision = record.revision
        if record.kind is Kind.KEY:
            return self._take_in_key(record)
        lease = int(record.name, 16)
        if (record.entry is not None) == (lease in self._leases):
            return []  # renewed, or gone already
        below = [entry for entry in self._keys.values() if entry.lease == lease]
        if record.entry is not None:
            self._leases.add(lease)
            return list(below)  # that lease was granted anew, by one who was slow
        self._leases.discard(lease)
        return [Deleted(entry.key, record.revision) for entry in below]

    def visible(self, prefix: str) -> list[Entry]:
        """The keys that are there, in their order."""
        return [
            entry
            for key, entry in sorted(self._keys.items())
            if key.startswith(prefix) and self._is_there(entry)
        ]

    def dead(self) -> list[Entry]:
        """Keys that stay in the stream although their lease has ended."""
        return [entry for entry in self._keys.values() if not self._is_there(entry)]

    def _take_in_key(self, record: Record) -> list[Entry | Deleted]:
        before = self._keys.pop(record.name, None)
        was_there = before is not None and self._is_there(before)
        if record.entry is not None:
            self._keys[record.name] = record.entry
            if self._is_there(record.entry):
                return [record.entry]
        return [Deleted(record.name, record.revision)] if was_there else []

    def _is_there(self, entry: Entry) -> bool:
        return entry.lease is None or entry.lease in self._leases
