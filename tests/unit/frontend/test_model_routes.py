"""A request goes to a pool of the model that it names, and to the next one if nobody took it."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dynamo_router.base.errors import CapacityError, InvalidRequestError, NoWorkersError
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.frontend.models import ModelRoutes
from dynamo_router.frontend.models import routes as model_routes
from dynamo_router.frontend.models.routes import Answering, ModelEntry, in_order
from dynamo_router.frontend.openai import ApiError
from dynamo_router.server.access import Caller
from dynamo_router.server.call_limits import CallLimits
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch import RequestReader
from dynamo_router.transport.http1 import Client, ClientLeftError, Handler, HttpCall

ROUTE = "POST /v1/completions"


class FakePool:
    """Answers, or raises what it was given; before or after the answer began."""

    def __init__(
        self, share: float = 1.0, error: Exception | None = None, *, begins: bool = True
    ) -> None:
        self.share, self._error, self._begins = share, error, begins
        self.asked = 0
        self.worker_id, self.model = 0, "m"

    def has_worker(self, worker_id: int) -> bool:
        return worker_id == self.worker_id

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {ROUTE: self._answer}

    async def _answer(self, call: HttpCall) -> None:
        self.asked += 1
        if self._error is None or self._begins:
            await call.send({"type": "http.response.start", "status": 200, "headers": []})
        if self._error is not None:
            raise self._error


class FakeDirectory:
    def __init__(self, **pools: Sequence[FakePool]) -> None:
        self._pools = pools
        self.any_ready = True
        self.report: dict[str, Any] = {"pools": [], "refused": []}

    @property
    def entries(self) -> Sequence[ModelEntry]:
        return [ModelEntry(name, 0) for name in self._pools]

    def find(self, name: str) -> Sequence[Answering]:
        return self._pools.get(name, [])


def unlimited() -> CallLimits:
    return CallLimits(CallerLimits(), LimitHits())


async def ask(
    directory: FakeDirectory, body: object, limits: CallLimits | None = None, **headers: str
) -> list[Any]:
    """What was sent."""
    calls = limits or unlimited()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    said = json.dumps(body).encode()
    call = HttpCall(Caller("x"), "/v1/completions", headers, said, "id", send, Client())
    await ModelRoutes(directory, calls, random.Random(1)).routes[ROUTE](call)
    return sent


async def test_it_goes_to_the_model_that_it_names() -> None:
    a, b = FakePool(), FakePool()
    assert await ask(FakeDirectory(a=[a], b=[b]), {"model": "b", "prompt": "x"})
    assert (a.asked, b.asked) == (0, 1)


async def test_token_ids_are_taken_out_of_the_body_once() -> None:
    """What is no list of them stays where it is, for who reads the prompt to refuse."""
    reader, found = RequestReader(16), list[HttpCall]()

    class Pool(FakePool):
        @property
        def handlers(self) -> Mapping[str, Handler]:
            async def answer(call: HttpCall) -> None:
                found.append(call)

            return {ROUTE: answer}

    routes = ModelRoutes(FakeDirectory(a=[Pool()]), unlimited(), reader=reader).routes

    async def ask_with(prompt: str) -> HttpCall:
        said = b'{"model": "a", "prompt": %b, "n": 1}' % prompt.encode()
        await routes[ROUTE](HttpCall(Caller("x"), "", {}, said, "id", nobody, Client()))
        return found[-1]

    try:
        call = await ask_with("[1, 2, 4294967295]")
        assert call.ids is not None and call.ids.tolist() == [1, 2, (1 << 32) - 1]
        assert json.loads(call.body) == {"model": "a", "prompt": [], "n": 1}
        for prompt in ('"text"', "[]", '["a", "b"]', "[[1], [2]]", "[1, -1]", "[1.5]"):
            call = await ask_with(prompt)
            assert call.ids is None and json.loads(call.body)["prompt"] == json.loads(prompt)
    finally:
        reader.close()


async def nobody(message: Any) -> None:
    raise AssertionError("nobody is answered")


async def test_an_unknown_model_is_told_which_there_are() -> None:
    with pytest.raises(ApiError, match="there is: a, b") as caught:
        await ask(FakeDirectory(a=[FakePool()], b=[FakePool()]), {"model": "c"})
    assert caught.value.status == 404


async def test_without_a_name_it_is_the_only_model() -> None:
    only = FakePool()
    await ask(FakeDirectory(a=[only]), {"prompt": "x"})
    assert only.asked == 1
    with pytest.raises(ApiError, match="model is required"):
        await ask(FakeDirectory(a=[only], b=[FakePool()]), {"prompt": "x"})


async def test_a_request_counts_until_it_is_answered() -> None:
    limits = CallLimits(CallerLimits(max_requests=1, max_share_per_caller=1.0), LimitHits())
    seen: list[dict[str, int]] = []
    refused: list[None] = []
    limits.on_request_refused = lambda: refused.append(None)

    class Pool(FakePool):
        async def _answer(self, call: HttpCall) -> None:
            seen.append(limits.open_calls())
            with pytest.raises(CapacityError, match="no capacity for the request: max_requests"):
                await ask(FakeDirectory(a=[FakePool()]), {"model": "a"}, limits)
            raise InvalidRequestError("bad")

    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            await ask(FakeDirectory(a=[Pool()]), {"model": "a"}, limits)
    assert [each["requests"] for each in seen] == [1, 1]
    assert len(refused) == 2
    assert limits.open_calls()["requests"] == 0


async def test_a_request_ends_with_its_client_wherever_it_is() -> None:
    """While its text is tokenized, too."""
    limits, client = unlimited(), Client()
    asked, ended = asyncio.Event(), list[str]()

    class Pool(FakePool):
        async def _answer(self, call: HttpCall) -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

    routes = ModelRoutes(FakeDirectory(a=[Pool()]), limits).routes
    call = HttpCall(Caller("x"), "", {}, b'{"model": "a"}', "id", nobody, client)
    running = asyncio.ensure_future(routes[ROUTE](call))
    await asked.wait()
    client.on_gone()
    with pytest.raises(ClientLeftError):
        await running
    assert ended == ["ended"] and limits.open_calls()["requests"] == 0


async def test_the_model_of_a_long_body_is_read_without_its_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decoding 15 MB of text for it would hold the event loop for 8 ms."""

    async def answered(message: Any) -> None:
        pass

    read: list[int] = []
    whole = model_routes._NAMED.decode

    class Spy:
        def decode(self, body: bytes) -> Any:
            read.append(len(body))
            return whole(body)

    monkeypatch.setattr(model_routes, "_NAMED", Spy())
    reader, a, b = RequestReader(16), FakePool(), FakePool()
    routes = ModelRoutes(FakeDirectory(a=[a], b=[b]), unlimited(), reader=reader).routes
    try:
        for body in (
            {"prompt": "x" * 1_000_000, "model": "b"},
            {"model": "b", "messages": [{"content": 'a"\\' * 100_000}], "user": "é" * 70_000},
        ):
            said = json.dumps(body).encode()
            await routes[ROUTE](HttpCall(Caller("x"), "", {}, said, "id", answered, Client()))
    finally:
        reader.close()
    assert b.asked == 2 and a.asked == 0 and max(read) < 200


async def test_what_no_worker_took_goes_to_the_next_pool() -> None:
    gone = FakePool(1e9, NoWorkersError("gone"), begins=False)
    there = FakePool(1.0)
    assert len(await ask(FakeDirectory(a=[gone, there]), {"model": "a"})) == 1
    assert (gone.asked, there.asked) == (1, 1)


async def test_what_began_stays_in_its_pool() -> None:
    broken, other = FakePool(1e9, NoWorkersError("gone")), FakePool()
    with pytest.raises(NoWorkersError):
        await ask(FakeDirectory(a=[broken, other]), {"model": "a"})
    assert other.asked == 0


async def test_a_clients_mistake_is_not_repeated_elsewhere() -> None:
    for error in (InvalidRequestError("bad"), ApiError(400, "bad"), RuntimeError("ours")):
        first, other = FakePool(1e9, error, begins=False), FakePool()
        with pytest.raises(type(error)):
            await ask(FakeDirectory(a=[first, other]), {"model": "a"})
        assert other.asked == 0


async def test_a_worker_that_is_asked_for_is_found_in_its_pool() -> None:
    large, small = FakePool(1e9), FakePool(1e-9)
    large.worker_id, small.worker_id = 5, 7
    directory = FakeDirectory(a=[large, small])
    await ask(directory, {"model": "a"}, **{"x-dynamo-worker-instance-id": "7"})
    assert (large.asked, small.asked) == (0, 1)
    for other in ("6", "seven", "٧", "9" * 40):
        await ask(directory, {"model": "a"}, **{"x-dynamo-worker-instance-id": other})
    assert (large.asked, small.asked) == (4, 1)


async def test_a_pool_without_workers_is_no_help() -> None:
    gone, empty = FakePool(1.0, NoWorkersError("gone"), begins=False), FakePool(0.0)
    with pytest.raises(NoWorkersError):
        await ask(FakeDirectory(a=[gone, empty]), {"model": "a"})
    assert empty.asked == 0


def test_pools_come_first_as_often_as_their_share() -> None:
    rng = random.Random(5)
    pools = [FakePool(3.0), FakePool(1.0), FakePool(0.0)]
    first: Counter[int] = Counter()
    for _ in range(4000):
        order = in_order(pools, rng)
        assert order[-1] is pools[2]
        first[pools.index(order[0])] += 1  # type: ignore[arg-type]  # it is one of them
    assert abs(first[0] - 3000) < 150 and first[0] + first[1] == 4000
