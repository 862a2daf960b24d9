"""Draws requests from a session model."""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..traces import TraceRequest
from .markov import START, chain_depths
from .scaling import MAX_REJECTED, FreshIds, Scaling
from .sessions import BEYOND, CLASSES, LEVEL, WHOLE, SessionModel, turn_class
from .streams import Streams, passes
from .turn_pool import Balance, Record, TurnPool, list_records

OPENINGS_HELD = 32  # to draw the next session from, near its place in the trace
OPENINGS_SHARE = 32  # but no more than one in this many
# Of the requests, this share may be turns too many or too few before pauses are bent. Tighter, and
# short pauses get shorter: the hit rate of small caches rises. docs/synthesizer.md has figures.
SLACK_PART = 400


class Session(NamedTuple):
    """What all turns of a session have in common. Blocks as learned, but `stem_made` as written."""

    family: int
    stem: int  # blocks of its stem
    stem_made: int  # the same, stretched
    phase: float  # where its stretched blocks are rounded, so that they are right on average


class Turn(NamedTuple):
    """A turn to come: when, in what session, and what it takes over. Ordered by time."""

    due_ms: float
    order: int
    number: int
    session: Session
    takes: int  # full blocks, as learned
    levels: tuple[int, ...]  # what each turn above it took over, if less; deepest last
    ids: list[int]  # of what it takes over
    length: int  # of the prompt before it, which it repeats; 0 if it does not


def walk_sessions(
    model: SessionModel,
    block_size: int,
    times_ms: Iterable[float],
    instant_ms: float,
    streams: Streams,
    scaling: Scaling,
) -> Iterator[TraceRequest]:
    """Requests at the given times, which lie about `instant_ms` apart where they differ.

    At each time the turn that is longest due goes on, or a new session opens; in the course of the
    trace as many go on as in the learned one (`_Course`). It gets a whole
    record of its class: one of those that took over about as much as it does, from about the same
    part of the trace. What is longer than the scaling's limits ends a session; ConfigError if
    nothing fits them.
    """
    walker = _Walker(model, block_size, streams, scaling)
    dither = streams["output dither"]
    for at in times_ms:
        # To the nearest instant: always the next one would make every gap longer.
        length, output, ids = walker.draw(at, at + instant_ms / 2)
        yield TraceRequest(
            scaling.timestamp(at),
            length,
            scaling.output_length(output, dither.random()),
            tuple(ids),
        )


class _Walker:
    def __init__(
        self, model: SessionModel, block_size: int, streams: Streams, scaling: Scaling
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._scaling = scaling
        self._stretch = scaling.prefix_len_multiplier
        self._fresh = FreshIds()
        self._phase = streams["prefix dither"].random
        self._family_stream = streams["families"]
        self._families: dict[tuple[int, bool], Iterator[int]] = {}
        openings = list_records(model.turns[0])
        self._openings = passes(
            openings,
            streams["openings"],
            max(1, min(OPENINGS_HELD, len(openings) // OPENINGS_SHARE)),
        )
        self._balances = [Balance() for _ in range(scaling.prefix_root_multiplier)]
        self._taken: list[int] = model.taken.tolist()
        self._place = 0
        pools = {
            at: TurnPool(list_records(records), streams[f"turns {at}"], block_size)
            for at, records in enumerate(model.turns[1:], 1)
            if len(records)
        }
        # Of the class next to it where a class has none: a drawn session may be longer or shorter
        # than the one its records come from.
        self._pools = [
            pools[min(pools, key=lambda filled: abs(filled - at))] for at in range(CLASSES) if pools
        ]
        self._repeats = TurnPool(list_records(model.repeats), streams["repeats"], block_size)
        self._stem_ids: dict[tuple[int, int], list[int]] = {}
        self._stem_depths = chain_depths(model.stem_parents, model.stem_lengths)
        # What sessions end at, such as a model's context, is not learned: but that none was longer.
        longest = [self._depth(each) * block_size + each.new_tokens for each in openings]
        for records in model.turns[1:]:
            longest += (records.takes * block_size + records.new_tokens).tolist()
        self._longest = max(longest)
        self._pending: list[Turn] = []
        self._order = 0
        # Stretched pauses are meant to have another number of sessions under way.
        self._course = _Course(model.opens) if scaling.pause_multiplier == 1 else None

    def draw(self, now_ms: float, due_ms: float) -> tuple[int, int, list[int]]:
        """Input length, output as learned, and ids of the request now; turns are due until then."""
        if self._course is not None:
            self._course.begin_request()
        for _ in range(MAX_REJECTED):
            goes_on = bool(self._pending) and self._pending[0].due_ms <= due_ms
            if self._course is not None:
                goes_on = self._course.goes_on(due=goes_on, pending=bool(self._pending))
            if goes_on:
                turn = heappop(self._pending)
                pool = self._repeats if turn.length else self._pools[turn_class(turn.number)]
                most_new = self._longest - (0 if turn.length else turn.takes * self._block_size)
                balance = self._balances[turn.session.family]
                record = pool.draw(turn.takes, turn.number, balance, most_new)
                if record is None:
                    continue  # the session ends
            else:
                record = next(self._openings)
                turn = self._open(record)
            drawn = self._write(turn, record, now_ms)
            if drawn is not None:
                learned = self._taken[self._place % len(self._taken)]
                self._place += 1
                self._balances[turn.session.family].add(turn.takes, learned)
                if self._course is not None and goes_on:
                    self._course.went_on()
                return drawn
        raise self._scaling.nothing_fits()

    def _open(self, record: Record) -> Turn:
        # Each family gets its share of the long and of the short, or few would sway it.
        kind = (record.new_tokens.bit_length(), bool(record.children))
        if kind not in self._families:
            families = range(self._scaling.prefix_root_multiplier)
            self._families[kind] = passes(families, self._family_stream)
        family = next(self._families[kind])
        ids = [] if record.takes == START else self._ids_of_stem(family, record.takes)
        depth = self._depth(record)
        session = Session(family, depth, len(ids), self._phase())
        return Turn(0.0, 0, 0, session, depth, (), ids, 0)

    def _depth(self, opening: Record) -> int:
        """How many blocks an opening turn takes over, as learned."""
        return 0 if opening.takes == START else self._stem_depths[opening.takes]

    def _write(
        self, turn: Turn, record: Record, now_ms: float
    ) -> tuple[int, int, list[int]] | None:
        """The request of a turn; its children become pending. None if it is out of the limits."""
        size = self._block_size
        # A repeat has no tokens of its own, whatever the repeat it is like had.
        full = turn.takes if turn.length else turn.takes + record.new_tokens // size
        shares = [_share(turn, kind, value, full) for _, kind, value in record.children]
        length = turn.length or self._length(turn, record, max(shares, default=0))
        if not self._scaling.fits(length):
            return None
        ids = [*turn.ids, *self._fresh.take(-(-length // size) - len(turn.ids))]
        for (gap_ms, kind, _), share in zip(record.children, shares, strict=True):
            self._order += 1
            whole = kind == WHOLE
            made = min(self._made(turn.session, share), length // size)
            child = Turn(
                due_ms=now_ms + gap_ms * self._scaling.pause_multiplier,
                order=self._order,
                number=turn.number + 1,
                session=turn.session,
                takes=share,
                levels=tuple(level for level in (*turn.levels, turn.takes) if 0 < level < share),
                ids=ids if whole else ids[:made],
                length=length if whole else 0,
            )
            heappush(self._pending, child)
        return length, record.output, ids

    def _length(self, turn: Turn, record: Record, shared: int) -> int:
        """The length of a turn's prompt, of which its children take over `shared` blocks."""
        # What some child takes over is prefix, and stretched as one; the rest is this prompt's own.
        kept = max(turn.takes, shared)
        length = self._made(turn.session, kept) * self._block_size
        own = (turn.takes - kept) * self._block_size + record.new_tokens
        if own > 0:
            length += self._scaling.leaf_tokens(own)
        return length or self._block_size  # 0 if all of it was scaled away

    def _made(self, session: Session, depth: int) -> int:
        """How many blocks are written for `depth` learned ones of a session's prefix."""
        if self._stretch == 1:
            return depth
        if depth <= session.stem:
            return session.stem_made
        # Of the whole depth, not of what lies beyond the stem: a stem of one block, stretched by
        # 1.5, is one block or two to all its sessions, and they make up for it.
        return max(session.stem_made, int(depth * self._stretch + session.phase))

    def _ids_of_stem(self, family: int, stem: int) -> list[int]:
        known = self._stem_ids.get((family, stem))
        if known is None:
            above = int(self._model.stem_parents[stem])
            before = [] if above == START else self._ids_of_stem(family, above)
            blocks = int(self._stem_depths[stem] * self._stretch + self._phase())
            known = [*before, *self._fresh.take(max(0, blocks - len(before)))]
            self._stem_ids[family, stem] = known
        return known


class _Course:
    """How many requests by now were turns of sessions under way in the learned trace, and in ours.

    A drawn turn may fall behind the end of the trace where the learned one did not, and each that
    does leaves its place to a session that opens: unsteered, the shorter a trace and the longer its
    sessions, the more its openings outnumber the learned ones, and the lower is its hit rate.
    """

    def __init__(self, opens: NDArray[np.bool_]) -> None:
        self._opens: list[bool] = opens.tolist()
        self._place = 0
        self._missing = 0  # turns, negative: too many
        self._slack = len(self._opens) // SLACK_PART

    def begin_request(self) -> None:
        """The next request is to be drawn."""
        self._missing += not self._opens[self._place % len(self._opens)]
        self._place += 1

    def goes_on(self, *, due: bool, pending: bool) -> bool:
        """Whether the request goes on with a session: if a turn is due, mostly.

        Where too few did by now, the turn that is due first comes early; where too many did, it
        waits. Beyond the learned length nothing waits: sessions are under way there from the start.
        """
        if self._missing > self._slack:
            return pending
        return due and (self._place > len(self._opens) or self._missing > -self._slack)

    def went_on(self) -> None:
        """The request was a turn, which fitted the limits."""
        self._missing -= 1


def _share(turn: Turn, kind: int, value: float, full: int) -> int:
    """How many blocks a child takes over from a turn that has `full` full ones."""
    if kind == WHOLE:
        return full
    if kind == BEYOND:
        return min(turn.takes + int(value), full)
    if kind == LEVEL:
        return turn.levels[max(-int(value), -len(turn.levels))] if turn.levels else turn.takes
    return max(turn.session.stem, 1, round(value * turn.takes))
