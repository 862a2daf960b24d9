"""Blocks go from one engine into another, each way, by each transfer; and what may go wrong."""

import asyncio
import importlib.util
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.engines.block_ends import BLOCKS, End, open_end, other_process, two_ends
from support.polling import until

from dynamo_router.engines.transfer import (
    Grant,
    GrantError,
    Notification,
    Offer,
    Revocation,
    Ticket,
    TransferError,
    TransferState,
    nixl,
    shm,
)
from dynamo_router.engines.transfer.grants import BlockState
from dynamo_router.engines.transfer.metadata import EngineMetadata

HAS_NIXL = importlib.util.find_spec("nixl") is not None
NIXL = pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed"))
on_each = pytest.mark.parametrize("kind", ["shm", NIXL])
HASHES = [3 * number + 1 for number in range(20)]


async def reason_of(end: End, ticket: Ticket) -> str:
    with pytest.raises(TransferError) as failed:
        await end.transfer.finished(ticket)
    return failed.value.reason


@on_each
@pytest.mark.parametrize("tps", [(1, 1), (1, 2), (4, 2)])
async def test_written_blocks_land_and_their_owner_is_notified(
    kind: str, tps: tuple[int, int], tmp_path: Path
) -> None:
    async with two_ends(kind, tmp_path, *tps) as (writer, owner):
        ours, theirs = writer.filled(HASHES), owner.grants.allocate(len(HASHES))
        grant = owner.grants.grant(theirs, "a1", deadline=1e9)
        peer = writer.transfer.connect(owner.transfer.export())
        assert writer.transfer.connect(owner.transfer.export()) is peer
        ticket = writer.transfer.write(peer, ours, grant, "r1", deadline_s=10)
        await writer.transfer.finished(ticket)
        assert (ticket.state, ticket.bytes) == (TransferState.DONE, len(HASHES) * 16384)
        await until(lambda: owner.notified)
        done = Notification("a1", "r1", len(HASHES), "done")
        assert owner.notified == [(writer.transfer.engine_id, done)]
        assert owner.arena.wrong(theirs, HASHES) == []
        assert owner.grants.land("a1") and owner.grants.state(theirs[0]) is BlockState.LANDED
    if kind == "shm":
        assert list(tmp_path.iterdir()) == []
    assert not [each for each in threading.enumerate() if each.name.startswith(("nixl", "block"))]


@on_each
@pytest.mark.parametrize("tps", [(1, 1), (2, 4)])
async def test_offered_blocks_are_read(kind: str, tps: tuple[int, int], tmp_path: Path) -> None:
    async with two_ends(kind, tmp_path, *tps) as (owner, reader):
        offer = owner.offer(owner.filled(HASHES))
        peer = reader.transfer.connect(owner.transfer.export())
        blocks = reader.grants.allocate(5)
        ticket = reader.transfer.read(peer, offer, blocks, range(15, 20), deadline_s=10)
        await reader.transfer.finished(ticket)
        await reader.transfer.settled(ticket)
        assert reader.arena.wrong(blocks, HASHES[15:]) == []
        reader.transfer.notify(peer, Notification("x", blocks=5))
        await until(lambda: owner.notified)


@on_each
async def test_a_block_that_is_anothers_by_now_is_not_taken(kind: str, tmp_path: Path) -> None:
    async with two_ends(kind, tmp_path) as (owner, reader):
        ours = owner.filled(HASHES)
        offer = owner.offer(ours)
        owner.grants.free(ours[3:4])  # evicted; another's comes into its place
        owner.arena.fill(owner.grants.allocate(1), [999])
        peer = reader.transfer.connect(owner.transfer.export())
        blocks = reader.grants.allocate(20)
        ticket = reader.transfer.read(peer, offer, blocks, range(20), deadline_s=10)
        assert await reason_of(reader, ticket) == "stale"
        good = reader.transfer.read(peer, offer, blocks[:3], range(3), deadline_s=10)
        await reader.transfer.finished(good)


@on_each
async def test_blocks_that_do_not_fit_are_refused(kind: str, tmp_path: Path) -> None:
    async with two_ends(kind, tmp_path) as (writer, owner):
        ours, theirs = writer.filled(HASHES), owner.grants.allocate(20)
        grant = owner.grants.grant(theirs, "a1", deadline=1e9)
        peer = writer.transfer.connect(owner.transfer.export())
        bad: list[tuple[str, Any]] = [
            ("19 blocks here, 20 there", (ours[:19], grant)),
            (f"has {BLOCKS} blocks, ", ([BLOCKS], Grant("a", (1,), (1,)))),
            (f"has {BLOCKS} blocks, ", ([1], Grant("a", (BLOCKS,), (1,)))),
            (f"has {BLOCKS} blocks, ", ([1], Grant("a", (-1,), (1,)))),
        ]
        for text, (blocks, given) in bad:
            with pytest.raises(TransferError, match=text) as refused:
                writer.transfer.write(peer, blocks, given, "r", deadline_s=1)
            assert refused.value.reason == "mismatch"
        with pytest.raises(TransferError, match="the offer has 1 blocks"):
            offer = Offer(owner.transfer.engine_id, "x", (1,), (1,))
            writer.transfer.read(peer, offer, ours[:2], [0, 1], deadline_s=1)
        assert owner.notified == []


@on_each
async def test_metadata_that_are_no_partners_are_refused(kind: str, tmp_path: Path) -> None:
    async with two_ends(kind, tmp_path) as (first, second):
        whole = msgspec.msgpack.decode(second.transfer.export(), type=EngineMetadata)

        def changed(**more: Any) -> bytes:
            return msgspec.structs.replace(whole, **more).encode()

        layout = msgspec.structs.replace(whole.layout, layers=2)
        bad = [
            (b"", "version", "no metadata of an engine"),
            (b"\x81\xa1a", "version", "no metadata of an engine"),
            (bytes(2_000_000), "version", "metadata of 2000000 bytes"),
            (changed(version=2), "version", "metadata of version 2, this engine knows 1"),
            (changed(kind="carrier pigeon"), "mismatch", "moves blocks by carrier pigeon"),
            (changed(layout=layout), "mismatch", "do not fit: its layers is 2, not 4"),
            (changed(engine_id="../../etc/passwd"), "version", "its id is none"),
        ]
        for body, reason, text in bad:
            with pytest.raises(TransferError, match=text) as refused:
                first.transfer.connect(body)
            assert refused.value.reason == reason


async def test_metadata_of_an_engine_that_has_ended_name_it_as_dead(tmp_path: Path) -> None:
    async with two_ends("shm", tmp_path) as (first, second):
        gone = open_end("shm", tmp_path)
        metadata = gone.export()
        peer = first.transfer.connect(metadata)
        assert not first.transfer.is_dead(peer)
        await gone.close()
        assert first.transfer.is_dead(peer)
        with pytest.raises(TransferError) as refused:
            first.transfer.connect(metadata)
        assert refused.value.reason == "dead"
        with pytest.raises(TransferError, match="no engine listens"):
            first.transfer.notify(peer, Notification("x"))
        assert second.notified == []


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_nixl_metadata_of_a_dead_incarnation(tmp_path: Path) -> None:
    async with two_ends("nixl", tmp_path) as (first, second):
        gone = open_end("nixl", tmp_path)
        metadata, offer = gone.export(), Offer(gone.engine_id, "x", (1,), (2,))
        await gone.close()
        peer = first.transfer.connect(metadata)
        ticket = first.transfer.read(peer, offer, [1], [0], deadline_s=10)
        assert await reason_of(first, ticket) == "dead" and first.transfer.is_dead(peer)
        torn = msgspec.msgpack.decode(second.transfer.export(), type=EngineMetadata)
        torn = msgspec.structs.replace(torn, agent_metadata=torn.agent_metadata[:50])
        peer = first.transfer.connect(torn.encode())
        ticket = first.transfer.read(peer, offer, [1], [0], deadline_s=10)
        assert await reason_of(first, ticket) == "mismatch"


async def test_a_revoked_grant_is_written_no_more(tmp_path: Path) -> None:
    async with two_ends("shm", tmp_path) as (writer, owner):
        ours, theirs = writer.filled(HASHES), owner.grants.allocate(20)
        grant = owner.grants.grant(theirs, "a1", deadline=1e9)
        assert await owner.transfer.revoke(grant) is Revocation.REVOKED
        assert owner.grants.state(theirs[0]) is BlockState.ALLOCATED
        assert await owner.transfer.revoke(grant) is Revocation.UNKNOWN
        again = owner.grants.grant(theirs, "a2", deadline=1e9)
        peer = writer.transfer.connect(owner.transfer.export())
        late = writer.transfer.write(peer, ours, grant, "r1", deadline_s=10)
        assert await reason_of(writer, late) == "revoked"
        assert not owner.arena.words.any(), "not a word of it"
        await until(lambda: owner.notified)
        assert owner.notified[0][1] == Notification("a1", "r1", 20, "failed", "revoked")
        assert not owner.grants.fail("a1"), "of an attempt that is over"
        good = writer.transfer.write(peer, ours, again, "r1", deadline_s=10)
        await writer.transfer.finished(good)


HALF = """
import fcntl
from dynamo_router.engines.transfer.shared_file import set_lock
file, first = peer.file, {epoch}
result = set_lock(file.file, first, fcntl.F_WRLCK)
file.arena.words[0, {block}, :2] = 77
"""


async def test_a_writer_that_stands_still_in_a_block_has_it_quarantined(tmp_path: Path) -> None:
    owner = End(open_end("shm", tmp_path))
    async with other_process("shm", tmp_path, owner.transfer) as (other, metadata):
        blocks = owner.grants.allocate(2)
        writer = owner.transfer.connect(metadata)
        grant = owner.grants.grant(blocks, "a1", deadline=1e9, writer=writer.engine_id)
        held = await other.do(HALF.format(epoch=grant.epochs[0], block=blocks[0]))
        assert held == "True"
        other.signal(signal.SIGSTOP)
        assert await owner.transfer.revoke(grant) is Revocation.QUARANTINED
        assert owner.grants.state(blocks[0]) is BlockState.QUARANTINED
        assert owner.arena.wrong(blocks[:1], [77]) == [0], "half of a block is none"
        assert not owner.transfer.is_dead(writer), "it may go on any time"
        assert await owner.transfer.revoke(grant) is Revocation.QUARANTINED
        other.signal(signal.SIGKILL)
        await until(lambda: owner.transfer.is_dead(writer))
        assert await owner.transfer.revoke(grant) is Revocation.REVOKED
        assert owner.grants.free_blocks == BLOCKS
    await owner.transfer.close()
    again = open_end("shm", tmp_path)  # removes what the dead process has left
    await again.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_writer_that_ends_while_its_right_is_revoked_leaves_the_blocks_to_their_owner(
    tmp_path: Path,
) -> None:
    owner = End(open_end("shm", tmp_path))
    async with other_process("shm", tmp_path, owner.transfer) as (other, metadata):
        blocks = owner.grants.allocate(2)
        writer = owner.transfer.connect(metadata)
        grant = owner.grants.grant(blocks, "a1", deadline=1e9, writer=writer.engine_id)
        assert await other.do(HALF.format(epoch=grant.epochs[0], block=blocks[0])) == "True"
        revoked = asyncio.create_task(owner.transfer.revoke(grant))
        await asyncio.sleep(0)  # it waits for the writer
        assert owner.grants.land("a1")
        assert await revoked is Revocation.UNKNOWN, "nothing was quarantined"
        assert owner.grants.state(blocks[0]) is BlockState.LANDED
        owner.grants.free(blocks)
    await owner.transfer.close()


@on_each
async def test_a_dead_writer_frees_its_blocks_after_a_drain(kind: str, tmp_path: Path) -> None:
    owner = End(open_end(kind, tmp_path))
    async with other_process(kind, tmp_path, owner.transfer) as (other, metadata):
        blocks = owner.grants.allocate(2)
        writer = owner.transfer.connect(metadata)
        owner.grants.grant(blocks, "a1", deadline=1e9, writer=writer.engine_id)
        owner.transfer.notify(writer, Notification("hello"))
        said = await other.do("import asyncio\nresult = len(end.notified)")
        assert said in ("0", "1") and not owner.transfer.is_dead(writer)
        other.signal(signal.SIGKILL)

        def is_dead() -> bool:
            try:
                owner.transfer.notify(writer, Notification("are you there"))
            except TransferError as error:
                assert error.reason == "dead"
            return owner.transfer.is_dead(writer)

        await until(is_dead)
        assert [each.attempt for each in owner.grants.on_writer_dead(writer.engine_id, 5.0)] == [
            "a1"
        ]
        assert owner.grants.drain(6.9) == [] and owner.grants.free_blocks == BLOCKS - 2
        assert len(owner.grants.drain(7.0)) == 1 and owner.grants.free_blocks == BLOCKS
    await owner.transfer.close()


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_a_peer_that_hangs_ends_by_the_deadline_and_moves_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")  # so that the peer has a part in it
    reader = End(open_end("nixl", tmp_path))
    async with other_process("nixl", tmp_path, reader.transfer) as (other, metadata):
        got = await other.do(
            "blocks = end.filled([5, 6]); offer = end.offer(blocks)\n"
            "result = [list(offer.blocks), list(offer.epochs)]"
        )
        there, epochs = msgspec.json.decode(got)
        peer = reader.transfer.connect(metadata)
        offer = Offer(peer.engine_id, "x", tuple(there), tuple(epochs))
        ours = reader.grants.allocate(2)
        good = reader.transfer.read(peer, offer, ours, [0, 1], deadline_s=10)
        await reader.transfer.finished(good)
        assert reader.arena.wrong(ours, [5, 6]) == []
        other.signal(signal.SIGSTOP)
        ticket = reader.transfer.read(peer, offer, ours, [0, 1], deadline_s=0.2)
        assert await reason_of(reader, ticket) == "timeout" and ticket.is_moving
        other.signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            await reader.transfer.settled(ticket)
    await reader.transfer.close()


async def test_a_large_transfer_leaves_the_loop_free_and_ends_by_its_deadline(
    tmp_path: Path,
) -> None:
    more = {"bytes_per_block": 1 << 20}
    writer = End(open_end("shm", tmp_path, 48, **more))
    owner = End(open_end("shm", tmp_path, 48, **more))
    hashes = list(range(48))
    ours, theirs = writer.filled(hashes), owner.grants.allocate(48)
    grant = owner.grants.grant(theirs, "a1", deadline=1e9)
    peer = writer.transfer.connect(owner.transfer.export())
    ticket = writer.transfer.write(peer, ours, grant, "r1", deadline_s=60)
    assert ticket.state is TransferState.RUNNING, "a thread copies"
    late = writer.transfer.write(peer, ours, grant, "r1", deadline_s=0)
    await writer.transfer.finished(ticket)
    assert owner.arena.wrong(theirs, hashes) == []
    assert await reason_of(writer, late) == "timeout"
    ended = writer.transfer.write(peer, ours, grant, "r1", deadline_s=60)
    await writer.transfer.close()
    assert ended.state is not TransferState.RUNNING
    await owner.transfer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bytes_per_block", [1 << 10, 1 << 20])
async def test_a_copy_that_fails_in_any_way_ends_its_ticket(
    bytes_per_block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop, or in the thread that copies what is large."""

    def broken(*blocks: object) -> None:
        raise IndexError("no such row")

    more = {"bytes_per_block": bytes_per_block}
    owner = End(open_end("shm", tmp_path, 8, **more))
    reader = End(open_end("shm", tmp_path, 8, **more))
    offer = owner.offer(owner.filled(HASHES[:4]))
    peer = reader.transfer.connect(owner.transfer.export())
    monkeypatch.setattr(shm, "copy_blocks", broken)
    blocks = reader.grants.allocate(4)
    ticket = reader.transfer.read(peer, offer, blocks, range(4), deadline_s=60)
    async with asyncio.timeout(20):
        assert await reason_of(reader, ticket) == "internal"
        await reader.transfer.settled(ticket)
    await reader.transfer.close()
    await owner.transfer.close()


@pytest.mark.parametrize("bytes_per_block", [1 << 10, 1 << 20])
@pytest.mark.parametrize("broken", ["is_dead", "notify"])
async def test_what_fails_beside_the_copy_ends_its_ticket_too(
    bytes_per_block: int, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*asked: object) -> bool:
        raise ValueError("no such thing")

    more = {"bytes_per_block": bytes_per_block}
    owner = End(open_end("shm", tmp_path, 8, **more))
    writer = End(open_end("shm", tmp_path, 8, **more))
    grant = owner.grants.grant(owner.grants.allocate(4), "a1", deadline=1e9)
    ours = writer.filled(HASHES[:4])
    peer = writer.transfer.connect(owner.transfer.export())
    monkeypatch.setattr(writer.transfer, broken, fail)
    async with asyncio.timeout(20):
        ticket = writer.transfer.write(peer, ours, grant, "r1", deadline_s=60)
        assert await reason_of(writer, ticket) == "internal"
        await writer.transfer.settled(ticket)
    monkeypatch.undo()
    await writer.transfer.close()
    await owner.transfer.close()


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_over_nixl_an_idle_end_looks_at_once_when_peers_are_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "IDLE_S", 1000.0)
    async with two_ends("nixl", tmp_path) as (first, second):  # which expect each other
        peer = first.transfer.connect(second.transfer.export())
        first.transfer.notify(peer, Notification("a1"))
        await until(lambda: second.notified)


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_over_nixl_a_write_lands_in_quarantine_and_frees_it(tmp_path: Path) -> None:
    async with two_ends("nixl", tmp_path) as (writer, owner):
        ours, theirs = writer.filled(HASHES), owner.grants.allocate(20)
        grant = owner.grants.grant(theirs, "a1", deadline=1e9)
        assert await owner.transfer.revoke(grant) is Revocation.QUARANTINED
        with pytest.raises(GrantError, match="is quarantined: it cannot be freed"):
            owner.grants.free(theirs)
        peer = writer.transfer.connect(owner.transfer.export())
        late = writer.transfer.write(peer, ours, grant, "r1", deadline_s=10)
        await writer.transfer.finished(late)  # the writer cannot know
        await until(lambda: owner.notified)
        assert owner.arena.wrong(theirs, HASHES) == [], "it was written all the same"
        assert owner.grants.land("a1") and owner.grants.free_blocks == BLOCKS
        assert await owner.transfer.revoke(grant) is Revocation.UNKNOWN
