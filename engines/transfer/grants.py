"""BlockGrants: which blocks of an arena are free, and which may another engine write into. Pure.

    free -> allocated -> granted(attempt) -> landed | quarantined -> free

A block is in at most one grant. A grant ends by its writer's word (done or failed), by a
revocation that the transfer carried out, or by quarantine where it could not: then the blocks are
free once the writer has answered after all, or is known dead and its last bytes have drained. The
passing of time alone never frees a block that an engine may write into.

Each block has an epoch, which changes when a permission to write or read it ends. A number is never
used twice in an arena.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ...base.errors import CapacityError, RouterError

DRAIN_S = 2.0
"""Seconds after a writer's death in which bytes that it sent may still arrive: what loopback and
socket buffers keep is gone in milliseconds; a margin of a thousand."""


class GrantError(RouterError, RuntimeError):
    """A step that the state of a block, or of a grant, does not allow."""


class BlockState(enum.IntEnum):
    FREE = 0
    ALLOCATED = 1
    """its owner alone writes and reads it"""
    GRANTED = 2
    """one attempt may write it"""
    LANDED = 3
    """written by an attempt; as if its owner had computed it"""
    QUARANTINED = 4
    """given up while it may be written: of no use until the writer has ended"""


_GRANTABLE, _FREEABLE = np.zeros((2, len(BlockState)), np.bool_)
"""By state: whether a block of it may be granted, or freed."""
_GRANTABLE[BlockState.ALLOCATED] = True
_FREEABLE[[BlockState.ALLOCATED, BlockState.LANDED]] = True


class Grant(msgspec.Struct, frozen=True):
    """The right of one attempt to write into blocks, as its writer is sent it."""

    attempt: str
    blocks: tuple[int, ...]
    epochs: tuple[int, ...]
    """of the blocks, in their order"""


@dataclass(slots=True)
class _Open:
    """A grant whose blocks may be written."""

    grant: Grant
    writer: str | None
    deadline: float
    quarantined: bool = False
    drained_at: float | None = None
    """when the last bytes of a dead writer have arrived"""


class BlockGrants:
    """Of one arena. Time is given to each call, in seconds of one clock."""

    def __init__(
        self,
        blocks: int,
        epochs: npt.NDArray[np.uint64] | None = None,
        *,
        drain_s: float = DRAIN_S,
    ) -> None:
        """`epochs`: where the blocks' epochs are, if they are shared with others."""
        self.epochs = np.zeros(blocks, np.uint64) if epochs is None else epochs
        self.drain_s = drain_s
        self._states = np.zeros(blocks, np.uint8)
        self._free = list(range(blocks - 1, -1, -1))  # the last one goes first
        self._open: dict[str, _Open] = {}
        self._last_epoch = 0
        self._renew(range(blocks))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def quarantined_blocks(self) -> int:
        return int((self._states == BlockState.QUARANTINED).sum())

    @property
    def granted_blocks(self) -> int:
        """That an attempt may write."""
        return int((self._states == BlockState.GRANTED).sum())

    @property
    def open_attempts(self) -> list[str]:
        """Attempts that may write, quarantined ones too."""
        return list(self._open)

    def state(self, block: int) -> BlockState:
        return BlockState(int(self._states[block]))

    def epochs_of(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.epochs[list(blocks)].tolist())

    def allocate(self, count: int) -> list[int]:
        """Free blocks, for their owner. CapacityError, and none is taken, if there are fewer."""
        if count > len(self._free):
            text = f"{count} blocks are wanted, {len(self._free)} are free"
            if quarantined := self.quarantined_blocks:
                text += f" and {quarantined} quarantined"
            raise CapacityError(text)
        blocks = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        self._states[blocks] = BlockState.ALLOCATED
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back. GrantError, and nothing is done, if one is free or may be written."""
        self._require(blocks, _FREEABLE, "freed")
        self._set_free(blocks)

    def grant(
        self, blocks: Sequence[int], attempt: str, *, deadline: float, writer: str | None = None
    ) -> Grant:
        """Let an attempt write allocated blocks. `writer`: its engine's id, once that is known.

        GrantError if a block is not allocated, is named twice, or the attempt has a grant.
        """
        if attempt in self._open:
            raise GrantError(f"attempt {attempt} has a grant")
        self._require(blocks, _GRANTABLE, "granted")
        self._states[list(blocks)] = BlockState.GRANTED
        self._renew(blocks)
        grant = Grant(attempt, tuple(blocks), self.epochs_of(blocks))
        self._open[attempt] = _Open(grant, writer, deadline)
        return grant

    def grant_of(self, attempt: str) -> Grant | None:
        found = self._open.get(attempt)
        return None if found is None else found.grant

    def writer_of(self, attempt: str) -> str | None:
        """The engine that has taken the attempt on, if that is known."""
        found = self._open.get(attempt)
        return None if found is None else found.writer

    def withdraw(self, attempt: str) -> bool:
        """End the right to begin a write: the epochs that the writer was given are past. It may be
        in the middle of one: `fail` or `quarantine` follows. False as `land`."""
        found = self._open.get(attempt)
        if found is not None:
            self._renew(found.grant.blocks)
        return found is not None

    def land(self, attempt: str) -> bool:
        """The writer is done: its blocks have landed, or, quarantined, are free.

        False, and nothing is done, if the attempt has no grant: it was revoked, or is unknown.
        """
        return self._end(attempt, BlockState.LANDED)

    def fail(self, attempt: str) -> bool:
        """The writer has given up, or its right was withdrawn so that it cannot write any more:
        its blocks are the owner's again, or, quarantined, free. False as `land`."""
        return self._end(attempt, BlockState.ALLOCATED)

    def quarantine(self, attempt: str) -> bool:
        """The owner gives the blocks up, and the writer cannot be stopped. False as `land`."""
        found = self._open.get(attempt)
        if found is None:
            return False
        if not found.quarantined:
            found.quarantined = True
            blocks = found.grant.blocks
            self._states[list(blocks)] = BlockState.QUARANTINED
            self._renew(blocks)
        return True

    def on_writer_dead(self, writer: str, now: float) -> list[Grant]:
        """An engine is known dead: its grants, all quarantined now, which `drain` will free."""
        dead = [each for each in self._open.values() if each.writer == writer]
        for each in dead:
            self.quarantine(each.grant.attempt)
            if each.drained_at is None:
                each.drained_at = now + self.drain_s
        return [each.grant for each in dead]

    def drain(self, now: float) -> list[Grant]:
        """Free what dead writers had, once their last bytes have arrived: their grants."""
        over = [
            each.grant
            for each in self._open.values()
            if each.drained_at is not None and each.drained_at <= now
        ]
        for grant in over:
            self.fail(grant.attempt)
        return over

    def overdue(self, now: float) -> list[Grant]:
        """Grants in time of which nothing came: to be revoked, or quarantined."""
        return [
            each.grant
            for each in self._open.values()
            if not each.quarantined and each.deadline <= now
        ]

    def _end(self, attempt: str, state: BlockState) -> bool:
        found = self._open.pop(attempt, None)
        if found is None:
            return False
        if found.quarantined:
            self._set_free(found.grant.blocks)
        else:
            self._states[list(found.grant.blocks)] = state
            self._renew(found.grant.blocks)
        return True

    def _set_free(self, blocks: Iterable[int]) -> None:
        freed = list(blocks)
        self._states[freed] = BlockState.FREE
        self._renew(freed)
        self._free += freed[::-1]

    def _renew(self, blocks: Iterable[int]) -> None:
        """A peer that knows the blocks' epochs has no right to them any more."""
        renewed = list(blocks)
        first = self._last_epoch + 1
        self._last_epoch += len(renewed)
        self.epochs[renewed] = np.arange(first, self._last_epoch + 1, dtype=np.uint64)

    def _require(self, blocks: Sequence[int], allowed: npt.NDArray[np.bool_], what: str) -> None:
        if len(set(blocks)) != len(blocks):
            raise GrantError(f"a block is {what} twice in one call")
        if blocks and not 0 <= min(blocks) <= max(blocks) < len(self._states):
            block = next(each for each in blocks if not 0 <= each < len(self._states))
            raise GrantError(f"there is no block {block} to be {what}")
        is_allowed = allowed[self._states[list(blocks)]]
        if not is_allowed.all():
            block = blocks[int(is_allowed.argmin())]
            text = f"block {block} is {self.state(block).name.lower()}"
            raise GrantError(f"{text}: it cannot be {what}")
