"""The event cursor in plain Python: what indexer/_cursor.pxd and _ingest.pxd must agree with.

A source's cache is a set of blocks here; an event is ("store" | "remove" | "clear", block).
"""

from dataclasses import dataclass, field

SILENT, EXACT, REBUILDING, DEGRADED = "silent", "exact", "rebuilding", "degraded"
Data = tuple[str, int]


@dataclass
class OracleSource:
    """One source's cursor, the events it holds back, and what it is believed to have cached."""

    max_held: int = 1 << 16
    state: str = SILENT
    publisher: int = 0
    floor: int = 0
    sequence: int = 0
    last: int = 0
    newest: int = 0
    fresh: bool = True
    suspect: bool = False
    previous: tuple[int, int] | None = None  # publisher, newest id
    gaps: int = 0
    given_up: int = 0
    restarts: int = 0
    duplicates: int = 0
    orphans: int = 0
    held: dict[int, Data] = field(default_factory=dict)
    blocks: set[int] = field(default_factory=set)

    @property
    def recovering(self) -> bool:
        return self.state == EXACT and (self.newest > self.last or self.suspect)

    @property
    def reported(self) -> str:
        return "recovering" if self.recovering else self.state

    @property
    def missing(self) -> tuple[int, int, int | None] | None:
        if not self.recovering:
            return None
        last = min(self.held) - 1 if self.held else self.newest if self.newest > self.last else None
        return self.publisher, self.last + 1, last

    def take(self, publisher: int, sequence: int, event_id: int, data: Data) -> None:
        if not self._believe(publisher, sequence, event_id):
            self.duplicates += 1
            return
        next_one = event_id == self.last + 1 or (self.fresh and event_id <= 1)
        if event_id <= self.last and not next_one:
            self.duplicates += 1
            return
        if not next_one and self.newest <= self.last and not self.fresh:
            self.gaps += 1
        self.suspect = False
        self._note(sequence, event_id)
        if data[0] == "clear":
            self.state = EXACT
        elif not next_one:
            if self.max_held and self.state == EXACT:
                self._hold(event_id, data)
                return
            self.blocks, self.held = set(), {}
            self.state = REBUILDING if self.state == EXACT else self.state
        self._apply(event_id, data)
        self._release()

    def beat(self, publisher: int, sequence: int, last_event_id: int) -> None:
        if self.state == SILENT:
            self._begin(publisher, 0)
        elif publisher != self.publisher:
            self._restart(publisher, 0)
        elif sequence < self.sequence:
            return
        elif sequence > self.sequence and last_event_id <= self.newest:
            self._restart(publisher, self.sequence + 1)
        if last_event_id > self.newest <= self.last and not self.fresh:
            self.gaps += 1
        self._note(sequence, last_event_id)
        self.suspect = False
        if self.newest > self.last and not (self.max_held and self.state == EXACT):
            self._forget_gap()

    def give_up(self) -> None:
        if self.recovering:
            self._forget_gap()

    def deaf(self) -> None:
        self.suspect = self.suspect or self.state == EXACT

    def _believe(self, publisher: int, sequence: int, event_id: int) -> bool:
        """Whether the event may be news; begins anew where the source did."""
        if self.state == SILENT:
            self._begin(publisher, 0)
        elif publisher != self.publisher:
            if self.previous is not None and self.previous[0] == publisher:
                if event_id <= self.previous[1]:
                    return False
            self._restart(publisher, 0)
        elif sequence < self.floor or (sequence < self.sequence and event_id > self.newest):
            return False
        elif sequence > self.sequence and event_id <= self.newest:
            self._restart(publisher, self.sequence + 1)
        return True

    def _begin(self, publisher: int, floor: int) -> None:
        self.publisher, self.floor = publisher, floor
        self.sequence = self.last = self.newest = 0
        self.state, self.suspect, self.fresh = EXACT, False, True
        self.held, self.blocks = {}, set()

    def _restart(self, publisher: int, floor: int) -> None:
        if publisher != self.publisher:
            self.previous = self.publisher, self.newest
        self.restarts += 1
        self._begin(publisher, floor)

    def _note(self, sequence: int, event_id: int) -> None:
        self.newest = max(self.newest, event_id)
        self.sequence = max(self.sequence, sequence)

    def _hold(self, event_id: int, data: Data) -> None:
        if event_id in self.held:
            self.duplicates += 1
        elif len(self.held) < self.max_held:
            self.held[event_id] = data
        else:
            self._forget_gap()

    def _apply(self, event_id: int, data: Data) -> None:
        self.last, self.fresh = event_id, False
        kind, block = data
        if kind == "store":
            self.blocks.add(block)
        elif kind == "remove":
            self.blocks.discard(block)
        elif kind == "clear":
            self.blocks.clear()
        else:  # a block below one that nobody holds
            self.orphans += 1
            self.state = REBUILDING if self.state == EXACT else self.state

    def _release(self) -> None:
        while self.last + 1 in self.held:
            self._apply(self.last + 1, self.held.pop(self.last + 1))
        self.held = {event: data for event, data in self.held.items() if event > self.last}
        if self.held and self.state != EXACT:
            self._forget_gap()

    def _forget_gap(self) -> None:
        """Forget what was known; the unbroken run of held events up to the newest is applied."""
        self.given_up += 1
        first = self.newest + 1
        while first - 1 in self.held:
            first -= 1
        self.held = {event: data for event, data in self.held.items() if event >= first}
        self.blocks = set()
        self.last, self.fresh, self.suspect = first - 1, False, False
        self.state = REBUILDING if self.state == EXACT else self.state
        self._release()
