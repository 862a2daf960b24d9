"""How many answers one turn of the event loop begins, of all requests together."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dynamo_router.base.account import set_account
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.engine_requests import ANSWER_S, Choice, HashedPrompt
from dynamo_router.frontend.generation import Workers, answer
from dynamo_router.frontend.openai import CompletionRequest
from dynamo_router.frontend.origin import origin_of
from dynamo_router.frontend.processor import ModelText
from dynamo_router.frontend.shared_prefill import LEAST_TOKENS
from dynamo_router.process.loop_turns import LoopTurns
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.access import ANONYMOUS
from dynamo_router.server.dispatch import ReadRequest, RequestReader
from dynamo_router.transport.http1 import Client
from dynamo_router.workers.trtllm_proto import pb

AT_A_TIME = 4
BLOCK = 16


class Engines:
    """In place of a dispatcher: notes in which turn of the loop each answer is begun, and ends it
    once `go_on` is set."""

    def __init__(self, reader: RequestReader) -> None:
        self.reader = reader
        self.turns = LoopTurns(AT_A_TIME * ANSWER_S)
        self.begun: list[tuple[int, str]] = []
        self.go_on = asyncio.Event()
        self._turn = 0
        self._next: asyncio.Handle | None = None

    async def generate(self, request: ReadRequest, respond: Any, **more: Any) -> PairDecision:
        if self._next is None:
            self._count()
        self.begun.append((self._turn, request.facts.request_id))
        await self.go_on.wait()
        return PairDecision(Decision(WorkerWithDpRank(1, 0), 0, 0, 1, 0))

    def decision_of(self, request_id: str, caller: Any) -> None:
        return None

    def _count(self) -> None:
        self._turn += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @property
    def most_in_a_turn(self) -> int:
        return max(Counter(turn for turn, _ in self.begun).values())


@pytest.fixture
def reader() -> Iterator[RequestReader]:
    made = RequestReader(BLOCK)
    yield made
    made.close()


@pytest.fixture
async def engines(reader: RequestReader) -> Any:
    made = Engines(reader)
    yield made
    made.close()


@pytest.fixture
def text(reader: RequestReader) -> ModelText:
    return ModelText(OWN_MODEL, reader.off_loop)


async def ask(
    engines: Engines,
    text: ModelText,
    name: str,
    answers: int,
    tokens: int = 1,
    client: Client | None = None,
) -> None:
    """One request for so many answers to one prompt, in the name of this caller."""
    set_account(name)
    request = CompletionRequest(model="m", prompt=cast(Any, b"[1]"))
    ids = array("I", range(tokens))
    prompt = HashedPrompt(ids, Prompt(ids, BLOCK))
    choices = [Choice(index, prompt, 16) for index in range(answers)]
    origin = origin_of(request, {}, ANONYMOUS, name, name)
    workers = Workers(cast(Any, engines), engines.turns)
    await answer(workers, text, request, choices, origin, lambda index, delta: None, client)


async def test_requests_of_many_answers_share_a_turn(engines: Engines, text: ModelText) -> None:
    engines.go_on.set()
    await asyncio.gather(*(ask(engines, text, f"r{n}", 32) for n in range(10)))
    assert len(engines.begun) == 320
    assert engines.most_in_a_turn <= 2 * AT_A_TIME  # the ends of two turns of it
    assert not engines.turns.waiting


async def test_a_plain_request_begins_in_the_turn_in_which_it_comes(
    engines: Engines, text: ModelText
) -> None:
    work = ask(engines, text, "plain", 1)
    work.send(None)
    assert len(engines.begun) == 1
    work.close()


async def test_those_that_waited_for_a_leading_answer_begin_a_few_in_a_turn(
    engines: Engines, text: ModelText
) -> None:
    asked = asyncio.create_task(ask(engines, text, "r", 64, tokens=2 * LEAST_TOKENS))
    while not engines.begun:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(engines.begun) == 1
    engines.go_on.set()
    await asked
    assert len(engines.begun) == 64
    assert engines.most_in_a_turn <= 2 * AT_A_TIME


async def test_one_caller_does_not_hold_up_another(engines: Engines, text: ModelText) -> None:
    many = asyncio.create_task(ask(engines, text, "many", 128))
    await asyncio.sleep(0)
    few = asyncio.create_task(ask(engines, text, "few", 2))
    while sum("few" in name for _, name in engines.begun) < 2:
        await asyncio.sleep(0)
    assert len(engines.begun) < 128 / 4
    engines.go_on.set()
    await asyncio.gather(many, few)


async def test_a_client_that_leaves_takes_what_waits_along(
    engines: Engines, text: ModelText
) -> None:
    asked = [asyncio.create_task(ask(engines, text, f"r{n}", 128)) for n in range(3)]
    while not engines.turns.waiting:
        await asyncio.sleep(0)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    assert not engines.turns.waiting
    assert len(engines.begun) <= 4 * AT_A_TIME


class Streaming(Engines):
    """The same, of answers of which one message has come: notes when that is read."""

    async def generate(self, request: ReadRequest, respond: Any, **more: Any) -> PairDecision:
        if self._next is None:
            self._count()
        await respond(pb.GenerateResponse(chunk={"token_ids": [300]}).SerializeToString())
        self.begun.append((self._turn, request.facts.request_id))
        return PairDecision(Decision(WorkerWithDpRank(1, 0), 0, 0, 1, 0))


async def test_what_waited_for_clients_goes_on_in_turns_when_they_read_again(
    reader: RequestReader, text: ModelText
) -> None:
    engines, clients = Streaming(reader), [Client() for _ in range(60)]
    for client in clients:
        client.on_full()
    asked = [
        asyncio.create_task(ask(engines, text, f"r{n}", 1, client=client))
        for n, client in enumerate(clients)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not engines.begun
    for client in clients:
        client.on_drained()
    await asyncio.gather(*asked)
    assert len(engines.begun) == 60
    assert engines.most_in_a_turn <= 2 * AT_A_TIME
    engines.close()
