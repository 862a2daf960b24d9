"""NixlTransfer: blocks that move by NIXL, over UCX, between engines on one host or several.

NIXL's own progress thread burns a core; here a thread of ours makes every call of the agent and
polls: often while transfers run or peers are expected, else twenty times a second. Over TCP both
ends have to poll for bytes to move. A write cannot be called back, nor stopped: a grant that is
taken back is quarantined until its writer has ended. A transfer to a peer that stands still never
ends by itself, hence the deadline of each.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from ...base.errors import UNREADABLE, ConfigError
from .arena import ArenaLayout, BlockArena, runs
from .grants import BlockGrants, Grant
from .interface import Notification, Offer, Revocation
from .metadata import EngineMetadata, read_metadata
from .tickets import Ticket, TransferError, finished, settled

INSTALL = "pip install --no-deps nixl-cu12 nixl"
RUNNING_S, EXPECTED_S, IDLE_S = 0.0001, 0.00025, 0.05
"""Between two polls: while a transfer of ours runs, while peers are expected, and else."""
_START_S = 30.0
_Handle = Any
_Descriptors = list[tuple[int, int, int]]
"""(address, bytes, device) of each piece, as NIXL takes them."""
_Steps = Generator[_Handle, None, None]
"""The transfers of NIXL that a ticket consists of, one after the other."""


class NixlPeer:
    """See Peer."""

    def __init__(self, metadata: EngineMetadata) -> None:
        self.engine_id, self.layout = metadata.engine_id, metadata.layout
        self.blocks, self.metadata = metadata.blocks, metadata
        self.agent: str | None = None
        """its name, once the agent knows it"""
        self.is_dead = False


class _Running:
    """A ticket that the thread works at."""

    def __init__(
        self, ticket: Ticket, peer: NixlPeer, steps: _Steps, ends_at: float, grant: str | None
    ) -> None:
        self.ticket, self.peer, self.steps, self.ends_at = ticket, peer, steps, ends_at
        self.grant = grant
        """the attempt that is to be reported to the peer if it fails"""
        self.handle: _Handle = None
        self.is_late = False


class NixlTransfer:
    """See Transfer."""

    kind = "nixl"

    def __init__(self, engine_id: str, layout: ArenaLayout, blocks: int) -> None:
        """ConfigError if NIXL is not installed, or UCX finds no transport."""
        self.engine_id = engine_id
        self.arena = BlockArena(layout, blocks)
        self.grants = BlockGrants(blocks)
        self._on_notification: Callable[[str, Notification], None] | None = None
        self.refused = 0
        """notifications that were none of an engine's"""
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, NixlPeer] = {}
        self._expected = 0
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: list[_Running] = []  # the thread's
        self._closed = False
        self._metadata = EngineMetadata(engine_id, self.kind, layout, blocks)
        self._failure: Exception | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_S):
            raise ConfigError(f"transfer: NIXL has not started in {_START_S:g} s", key="transfer")
        if self._failure is not None:
            self._thread.join()
            raise _why_not(self._failure)

    finished = staticmethod(finished)
    settled = staticmethod(settled)

    def export(self) -> bytes:
        return self._metadata.encode()

    def connect(self, metadata: bytes) -> NixlPeer:
        read = read_metadata(metadata, self.kind, self.arena.layout)
        known = self._peers.get(read.engine_id)
        if known is not None and not known.is_dead:
            return known
        peer = self._peers[read.engine_id] = NixlPeer(read)
        return peer

    def disconnect(self, peer: NixlPeer) -> None:
        if self._peers.get(peer.engine_id) is peer:
            del self._peers[peer.engine_id]
            self._jobs.put(partial(self._forget, peer))

    def write(
        self, peer: NixlPeer, blocks: Sequence[int], grant: Grant, request_id: str, *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        self._check_fit(peer, blocks, grant.blocks)
        done = Notification(grant.attempt, request_id, len(blocks))

        def steps() -> _Steps:
            ours, theirs = self._pieces(peer, blocks, grant.blocks)
            yield self._initialize("WRITE", ours, theirs, peer, _encoded(done))

        return self._begin(peer, len(blocks), steps(), deadline_s, grant.attempt)

    def read(
        self, peer: NixlPeer, offer: Offer, blocks: Sequence[int], positions: Sequence[int], *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        if max(positions, default=-1) >= len(offer.blocks):
            raise TransferError(f"the offer has {len(offer.blocks)} blocks", "mismatch")
        there = [offer.blocks[each] for each in positions]
        epochs = [offer.epochs[each] for each in positions]
        self._check_fit(peer, blocks, there)

        def steps() -> _Steps:
            ours, theirs = self._pieces(peer, blocks, there)
            yield self._initialize("READ", ours, theirs, peer, b"")
            # An epoch that is past when the data have come may have been past while they did.
            found = np.zeros(len(there), np.uint64)
            region = self._agent.register_memory(_region(found), "DRAM")
            try:
                first = peer.metadata.epochs_address
                ours = [(found.ctypes.data + 8 * at, 8, 0) for at in range(len(there))]
                theirs = [(first + 8 * block, 8, 0) for block in there]
                yield self._initialize("READ", ours, theirs, peer, b"")
            finally:
                self._agent.deregister_memory(region)
            if found.tolist() != epochs:
                text = f"engine {peer.engine_id} has other contents in these blocks by now"
                raise TransferError(text, "stale")

        return self._begin(peer, len(blocks), steps(), deadline_s, None)

    def notify(self, peer: NixlPeer, notification: Notification) -> None:
        if peer.is_dead:
            raise TransferError(f"engine {peer.engine_id} is gone", "dead")
        self._jobs.put(partial(self._send, peer, notification))

    def listen(self, on_notification: Callable[[str, Notification], None]) -> None:
        self._on_notification = on_notification

    def expect(self, more: int) -> None:
        self._expected += more
        if more > 0 and self._expected == more:
            self._jobs.put(_look)  # the thread may have begun a long pause

    def is_dead(self, peer: NixlPeer) -> bool:
        return peer.is_dead

    async def revoke(self, grant: Grant) -> Revocation:
        if self.grants.quarantine(grant.attempt):
            return Revocation.QUARANTINED
        return Revocation.UNKNOWN

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # what it has reported last

    def _begin(
        self, peer: NixlPeer, blocks: int, steps: _Steps, deadline_s: float, grant: str | None
    ) -> Ticket:
        ticket = Ticket(blocks * self.arena.layout.bytes_per_block)
        if self._closed:
            ticket.end(TransferError("the engine is closed", "unavailable"))
            return ticket
        running = _Running(ticket, peer, steps, monotonic() + deadline_s, grant)
        self._jobs.put(partial(self._take_on, running))
        return ticket

    def _check_fit(self, peer: NixlPeer, ours: Sequence[int], theirs: Sequence[int]) -> None:
        if len(ours) != len(theirs):
            raise TransferError(f"{len(ours)} blocks here, {len(theirs)} there", "mismatch")
        for blocks, most, whose in (
            (ours, self.arena.blocks, "this engine"),
            (theirs, peer.blocks, f"engine {peer.engine_id}"),
        ):
            if blocks and not 0 <= min(blocks) <= max(blocks) < most:
                raise TransferError(f"{whose} has {most} blocks, not {max(blocks)}", "mismatch")

    def _pieces(
        self, peer: NixlPeer, ours: Sequence[int], theirs: Sequence[int]
    ) -> tuple[_Descriptors, _Descriptors]:
        """The same bytes here and there, as pieces that lie in one on both sides."""
        here: _Descriptors = []
        there: _Descriptors = []
        layout = self.arena.layout
        pairs = list(runs(ours, theirs))
        head = layout.head_words * 8
        base, other = self._metadata.base_address, peer.metadata.base_address
        for rank, heads, their_rank, their_heads in layout.shared_heads(peer.layout):
            size = (heads.stop - heads.start) * head
            whole = size == layout.rank_heads * head == peer.layout.rank_heads * head
            for mine, its in pairs:
                first = (rank * self.arena.blocks + mine.start) * layout.rank_bytes
                second = (their_rank * peer.blocks + its.start) * peer.layout.rank_bytes
                if whole:
                    length = (mine.stop - mine.start) * layout.rank_bytes
                    here.append((base + first, length, 0))
                    there.append((other + second, length, 0))
                    continue
                lines = (mine.stop - mine.start) * layout.layers
                for line in range(lines):
                    at = first + (line * layout.rank_heads + heads.start) * head
                    to = second + (line * peer.layout.rank_heads + their_heads.start) * head
                    here.append((base + at, size, 0))
                    there.append((other + to, size, 0))
        return here, there

    # What follows is called by the thread alone.

    def _run(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._started.set()
        while self._take_jobs():
            still = []
            for running in self._running:
                if self._advance(running):
                    still.append(running)
            self._running = still
            self._read_notifications()
        closed = TransferError("the engine is closed", "unavailable")
        for running in self._running:
            self._release(running)
            self._end(running, closed)
        for peer in list(self._peers.values()):
            self._forget(peer)
        self._agent.deregister_memory(self._memory)
        self._agent.deregister_memory(self._epochs)
        del self._agent

    def _open(self) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        try:
            nixl = import_module("nixl")
        except ModuleNotFoundError:
            nixl = import_module("nixl_cu12")
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent: Any = nixl.nixl_agent(self.engine_id, config)
        self._memory = self._agent.register_memory(_region(self.arena.words), "DRAM")
        self._epochs = self._agent.register_memory(_region(self.grants.epochs), "DRAM")
        self._metadata = msgspec.structs.replace(
            self._metadata,
            agent_metadata=self._agent.get_agent_metadata(),
            base_address=self.arena.words.ctypes.data,
            epochs_address=self.grants.epochs.ctypes.data,
        )

    def _take_jobs(self) -> bool:
        """Do what the loop has asked for, after a wait; False: close."""
        wait = IDLE_S
        if self._running:
            wait = RUNNING_S
        elif self._expected > 0 or self.grants.open_attempts:
            wait = EXPECTED_S
        try:
            job = self._jobs.get(timeout=wait)
            while True:
                if job is None:
                    return False
                job()
                job = self._jobs.get_nowait()
        except Empty:
            return True

    def _take_on(self, running: _Running) -> None:
        self._running.append(running)

    def _advance(self, running: _Running) -> bool:
        """Go on with a ticket; whether it is to be looked at again."""
        try:
            if running.handle is None:
                self._add(running.peer)
                running.handle = next(running.steps)
                state = self._agent.transfer(running.handle)
            else:
                state = self._agent.check_xfer_state(running.handle)
            while state == "DONE":
                self._release(running)
                running.handle = next(running.steps)
                state = self._agent.transfer(running.handle)
            if state == "ERR":
                raise TransferError("NIXL reports an error of the transfer", "unavailable")
        except StopIteration:
            self._end(running, None)
            return False
        except TransferError as error:
            self._release(running)
            self._end(running, error)
            return False
        except Exception as error:  # the bindings have classes of their own, with no common base
            self._release(running)
            self._end(running, self._judge(running.peer, error))
            return False
        if monotonic() >= running.ends_at and not running.is_late:
            running.is_late = True
            late = TransferError("its deadline passed", "timeout")
            self._post(partial(running.ticket.end, late, is_moving=True))
        return True

    def _release(self, running: _Running) -> None:
        handle, running.handle = running.handle, None
        if handle is not None:
            try:
                self._agent.release_xfer_handle(handle)
            except Exception:
                return  # of a peer that is gone

    def _end(self, running: _Running, error: TransferError | None) -> None:
        running.steps.close()
        if error is not None and running.grant is not None and not running.peer.is_dead:
            failed = Notification(running.grant, status="failed", error=error.reason)
            self._send(running.peer, failed)
        self._post(partial(running.ticket.end, error))

    def _judge(self, peer: NixlPeer, error: Exception) -> TransferError:
        kind = type(error).__name__
        if kind in ("nixlRemoteDisconnectError", "nixlBackendError"):
            self._on_dead(peer)
            return TransferError(f"engine {peer.engine_id} is gone ({kind})", "dead")
        if kind in ("nixlMismatchError", "nixlInvalidParamError", "nixlNotFoundError"):
            return TransferError(f"engine {peer.engine_id}: NIXL refuses it ({kind})", "mismatch")
        return TransferError(f"engine {peer.engine_id}: {kind}: {error}", "unavailable")

    def _on_dead(self, peer: NixlPeer) -> None:
        peer.is_dead = True
        self._forget(peer)

    def _add(self, peer: NixlPeer) -> None:
        if peer.agent is None:
            name = self._agent.add_remote_agent(peer.metadata.agent_metadata)
            peer.agent = name.decode() if isinstance(name, bytes) else name
        if peer.agent != peer.engine_id:
            text = f"metadata of engine {peer.engine_id} with the agent of {peer.agent}"
            raise TransferError(text, "stale")

    def _forget(self, peer: NixlPeer) -> None:
        if peer.agent is not None:
            try:
                self._agent.remove_remote_agent(peer.agent)
            except Exception:
                return  # it has gone by itself
            finally:
                peer.agent = None

    def _initialize(
        self, operation: str, ours: _Descriptors, theirs: _Descriptors, peer: NixlPeer, notif: bytes
    ) -> _Handle:
        agent = self._agent
        local = agent.get_xfer_descs(ours, "DRAM")
        remote = agent.get_xfer_descs(theirs, "DRAM")
        return agent.initialize_xfer(operation, local, remote, peer.agent, notif)

    def _send(self, peer: NixlPeer, notification: Notification) -> None:
        try:
            self._add(peer)
            self._agent.send_notif(peer.agent, _encoded(notification))
        except TransferError:
            return  # there is no such peer
        except Exception as error:
            self._judge(peer, error)

    def _read_notifications(self) -> None:
        for name, messages in self._agent.get_new_notifs().items():
            for body in messages:
                try:
                    notification = msgspec.msgpack.decode(body, type=Notification)
                except (*UNREADABLE, msgspec.ValidationError):
                    self.refused += 1
                    continue
                self._post(partial(self._hand_on, name, notification))

    def _hand_on(self, engine_id: str, notification: Notification) -> None:
        if self._on_notification is not None:
            self._on_notification(engine_id, notification)

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop has ended, and with it those who wait


def _look() -> None:
    """A job that does nothing: what follows a job does."""


def _region(memory: Any) -> list[tuple[int, int, int, str]]:
    return [(memory.ctypes.data, memory.nbytes, 0, "kv")]


def _encoded(notification: Notification) -> bytes:
    return msgspec.msgpack.encode(notification)


def _why_not(error: Exception) -> ConfigError:
    if isinstance(error, ImportError):
        text = f"NIXL cannot be imported ({error}); {INSTALL}, or --transfer shm"
    else:
        tls = os.environ.get("UCX_TLS", "not set")
        text = f"NIXL has no transport here ({type(error).__name__}: {error}); UCX_TLS is {tls}"
    return ConfigError(f"transfer: {text}", key="transfer")
