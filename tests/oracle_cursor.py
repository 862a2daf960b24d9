"""The event cursor in plain Python: what indexer/_cursor.pxd must agree with."""

from dataclasses import dataclass

SILENT, EXACT, REBUILDING = "silent", "exact", "rebuilding"
APPLY, DUPLICATE, RESET = "apply", "duplicate", "reset"


@dataclass
class OracleCursor:
    state: str = SILENT
    publisher_id: int = 0
    sequence: int = 0
    last_event_id: int = 0
    gaps: int = 0
    restarts: int = 0
    duplicates: int = 0
    orphans: int = 0

    def admit(self, publisher_id: int, sequence: int, event_id: int, is_clear: bool) -> str:
        fresh = EXACT if is_clear or event_id <= 1 else REBUILDING
        renumbered = event_id <= 1 < self.last_event_id and sequence > self.sequence
        verdict = APPLY
        if self.state == SILENT:
            self.state = fresh
        elif publisher_id != self.publisher_id or renumbered:
            self.restarts += 1
            self.state, verdict = fresh, RESET
        elif event_id <= self.last_event_id:
            self.duplicates += 1
            return DUPLICATE
        elif event_id > self.last_event_id + 1:
            self.gaps += 1
            self.state, verdict = EXACT if is_clear else REBUILDING, RESET
        elif is_clear:
            self.state = EXACT
        self.publisher_id, self.sequence, self.last_event_id = publisher_id, sequence, event_id
        return verdict

    def orphan(self) -> None:
        self.orphans += 1
        if self.state == EXACT:
            self.state = REBUILDING
