"""Where the reader of an engine's gRPC event stream stands: what to do with each batch. Pure.

An engine numbers its batches by one. A new subscriber gets the state of its cache in chunks, then
what changes; one that names a number may get the batches from there on. Load records and heartbeats
repeat the last number. Events have numbers of their own, by rank: one that is missing there was
lost in the engine, and no batch will bring it. The first event after a snapshot shows no such loss:
nothing says which number the snapshot was taken at.
"""

import enum

from ..indexer.wire import BatchHead

FIRST_SEQUENCES = (0, 1)
"""A stream that begins with one of these has everything since its engine started."""
STATE_TRIES = 3
"""Subscriptions in a row without the state they asked for, after which the engine gives none."""


class StreamStep(enum.Enum):
    """What to do after a batch."""

    IGNORE = "ignore"
    APPLY = "apply"
    CLEAR_AND_APPLY = "clear and apply"  # forget what is known of all ranks before
    RESUBSCRIBE = "resubscribe"  # ask again, from `start` on


class StreamCursor:
    """The numbering of one engine's stream, over as many subscriptions as it takes.

    Invariant: what was applied since the last CLEAR_AND_APPLY is a snapshot, or nothing, and every
    batch after that without a hole.
    """

    def __init__(self) -> None:
        self._next: int | None = None  # the number expected; None: nothing is known
        self._chunk: int | None = None  # the chunk expected, inside of a snapshot
        self._resumed = False  # this subscription was asked to go on, and nothing came yet
        self._event_ids: dict[int, int] = {}  # of the last event, by rank
        self._stateless = 0  # subscriptions in a row that began with a change, not with the state
        self.gives_snapshots = False
        self.complete = False
        """whether all that the engine holds was applied"""
        self.synced = False
        """whether something was applied, and no snapshot is under way"""
        self.gaps = 0
        """times that batches or events were missing"""
        self.restarts = 0
        """times that the numbering began anew under a subscription that should have gone on"""

    @property
    def start(self) -> int:
        """The number to subscribe from; 0: the state of the cache."""
        return self._next or 0

    def on_subscribed(self) -> None:
        """A new subscription begins, from `start`."""
        self._resumed = self._next is not None

    def on_broken(self) -> None:
        """The stream ended. The engine may have started anew meanwhile, and its numbers may have
        come as far again: if it sends the state of its cache, that is asked for."""
        if self.gives_snapshots or self._chunk is not None:
            self.forget()

    def forget(self) -> None:
        """Begin with the state of the cache the next time."""
        self._next = self._chunk = None
        self.synced = False

    def lose_all(self) -> None:
        """Whether what was applied still holds is unknown: it was cleared."""
        self.forget()
        self.complete, self.synced = False, True

    def take(self, head: BatchHead) -> StreamStep:
        """The next batch of the subscription; move on as if the step were done."""
        if head.chunk_count:
            return self._take_chunk(head)
        if head.load_only:
            # The number of the last batch that was sent: did it come?
            if self._chunk is not None or self._next is None or head.sequence < self._next:
                return StreamStep.IGNORE
            return self._lose(head) if self._resumed else self._miss()
        if self._chunk is not None:
            return self._start_over()  # changes in the midst of a state
        resumed, self._resumed = self._resumed, False
        if self._next is None:
            return self._take_first(head)
        if head.sequence < self._next:
            if resumed:
                self.restarts += 1
                return self._start_over()
            return StreamStep.IGNORE
        if head.sequence > self._next:
            if not resumed:
                return self._miss()
            # It was asked for what is missing, and has it no more.
            return self._lose(head)
        if self._has_hole(head):
            self.gaps += 1
            return self._lose(head)
        return self._go_on(head)

    def _take_first(self, head: BatchHead) -> StreamStep:
        """A change where the state of the cache was expected, or streams begin with changes."""
        from_start = head.sequence in FIRST_SEQUENCES and head.first_id <= 1
        if self.gives_snapshots and not from_start:
            self._stateless += 1
            if self._stateless < STATE_TRIES:
                return self._miss()
            self.gives_snapshots = False  # another engine at that address
        return self._begin(head, complete=from_start)

    def _take_chunk(self, head: BatchHead) -> StreamStep:
        self._resumed = False
        first = head.chunk_index == 0
        if not first and (head.chunk_index != self._chunk or head.sequence != self._next):
            return self._start_over()
        self.gives_snapshots, self._stateless = True, 0
        step = StreamStep.APPLY
        if first:
            step = self._begin(head, complete=head.unknown_before == 0)
        self._next = head.sequence + 1
        last = head.chunk_index + 1 >= head.chunk_count
        self._chunk = None if last else head.chunk_index + 1
        self.synced = last
        return step

    def _begin(self, head: BatchHead, *, complete: bool) -> StreamStep:
        self._event_ids.clear()
        self.complete = complete
        self._go_on(head)
        return StreamStep.CLEAR_AND_APPLY

    def _go_on(self, head: BatchHead) -> StreamStep:
        self._next = head.sequence + 1
        self.synced = True
        if head.last_id:
            self._event_ids[head.dp_rank] = head.last_id
        return StreamStep.APPLY

    def _has_hole(self, head: BatchHead) -> bool:
        before = self._event_ids.get(head.dp_rank)
        return head.hole or (before is not None and head.first_id > before + 1)

    def _miss(self) -> StreamStep:
        """Batches did not come: go on from the first of them."""
        self.gaps += 1
        return StreamStep.RESUBSCRIBE

    def _lose(self, head: BatchHead) -> StreamStep:
        """What is missing cannot be had: take the state, or know from here on only."""
        self._resumed = False
        if self.gives_snapshots:
            return self._start_over()
        return self._begin(head, complete=False)

    def _start_over(self) -> StreamStep:
        self.forget()
        return StreamStep.RESUBSCRIBE
