"""Chats at OpenAI's door of several fronts, whose processes are killed, stand still and come back.

Each chat ends: with what its prompt asks for, or truthfully where what had it was taken away.
ADVERSITY_PROFILE=long goes on for longer; ADVERSITY_SEED=N is this seed alone.
"""

import asyncio
from collections import Counter
from os import environ
from pathlib import Path
from random import Random

import pytest
from support.adversity.ledger import Ledger
from support.adversity.seeds import seeds_of
from support.chats.clients import CHAT_KINDS, ChatClients
from support.chats.fleet import FAULTS, LOSES_CONNECTIONS, LOSES_STREAMS, ChatFleet
from support.polling import until

ROUNDS = {"": 1, "long": 8}[environ.get("ADVERSITY_PROFILE", "")]
EACH = 2
"""Chats of each kind before a fault, and as many behind it."""
END_S = 120.0


async def chats(fleet: ChatFleet, ledger: Ledger, random: Random, fault: str = "") -> None:
    """Chats of all kinds, and the fault in the midst of them."""
    clients = ChatClients(
        fleet.session,
        fleet.openai,
        fleet.oracle,
        ledger,
        Random(random.getrandbits(32)),
        loses_streams=fault in LOSES_STREAMS,
        loses_connections=fault in LOSES_CONNECTIONS,
    )

    def come() -> list[asyncio.Task[None]]:
        kinds = [kind for kind in CHAT_KINDS for _ in range(EACH)]
        random.shuffle(kinds)
        return [asyncio.create_task(clients.run(kind), name=kind) for kind in kinds]

    asked = come()
    async with asyncio.timeout(END_S):
        if fault:
            some = random.randint(1, 60)
            await until(lambda: clients.messages >= some or all(task.done() for task in asked))
            befalling = asyncio.create_task(fleet.befall(fault))
            asked += come()
            await befalling
        await asyncio.gather(*asked)


@pytest.mark.parametrize("seed", seeds_of(1))
async def test_each_chat_ends_truthfully(seed: int, tmp_path: Path) -> None:
    random, ledger = Random(seed), Ledger()
    async with ChatFleet(tmp_path, random) as fleet:
        for _ in range(ROUNDS):
            for fault in random.sample(FAULTS, len(FAULTS)):
                await chats(fleet, ledger, random, fault)
                assert not ledger.wrong(), f"{fault}:\n" + "\n".join(ledger.wrong())
                await until(fleet.is_ready, 60.0)
                await chats(fleet, ledger, random)  # all is well again
                assert not ledger.wrong(), f"behind {fault}:\n" + "\n".join(ledger.wrong())
                await until(fleet.nothing_is_booked, 60.0)
        print(Counter((entry.kind, entry.code) for entry in ledger.entries))  # shown by -s
        for router in fleet.outputs:
            assert "Traceback" not in router.text, router.text[-4000:]
