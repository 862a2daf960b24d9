"""ModelRoutes: the routes of a frontend; a request goes to workers of the model that it names.

Which models there are, and who answers for each, is for a Directory to say.
"""

import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ...base.errors import CapacityError, StatusCode
from ...base.request_record import RequestRecord, current_record
from ...server.access import current_account
from ...server.call_limits import CallLimits
from ...server.dispatch import LONG_BYTES, MAX_JSON_PARTS, RequestReader, status_of
from ...server.pool import WorkerPool
from ...server.services import PINNED_WORKER_KEY
from ...transport.http1 import Handler, HttpCall, Message, Routes, answer_json
from ..completions import IDS_KEYS, ITEM_FORMS, MODEL_ROUTES, MOST_JSON_PARTS, Completions
from ..engine_requests import ANSWER_S, CALL_S
from ..long_chats import items_apart
from ..openai import LONG_BODY, ApiError, unknown_model


class _Named(msgspec.Struct):
    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


class ModelEntry(NamedTuple):
    """A model as clients see it. `parent` is the model that another name, or an adapter, is of."""

    name: str
    context_limit: int
    parent: str = ""


class Answering(Protocol):
    """Workers that answer for a model."""

    @property
    def model(self) -> str:
        """Its name, or that of the adapter; empty while no engine has named it."""
        ...

    @property
    def share(self) -> float:
        """Of the model's requests; 0: they take none now."""
        ...

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By route."""
        ...

    def has_worker(self, worker_id: int) -> bool: ...


SomeAnswering = TypeVar("SomeAnswering", bound=Answering)


class Directory(Protocol):
    """The models of one frontend."""

    @property
    def entries(self) -> Sequence[ModelEntry]: ...

    @property
    def any_ready(self) -> bool:
        """Whether a worker of any model takes requests."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What is to be seen of each pool, and of cards that get no requests; as JSON."""
        ...

    def find(self, name: str) -> Sequence[Answering]:
        """The pools that answer for a model; none if no model has this name."""
        ...


class OneModel:
    """The one model of a router: by whatever name its engines call it, if it was given none."""

    def __init__(self, completions: Completions, pool: WorkerPool) -> None:
        self._completions, self._pool = completions, pool
        self.handlers: Mapping[str, Handler] = completions.routes

    @property
    def entries(self) -> Sequence[ModelEntry]:
        name = self._completions.name
        return [ModelEntry(name, self._completions.context_limit)] if name else []

    @property
    def model(self) -> str:
        return self._completions.name

    @property
    def any_ready(self) -> bool:
        return self._completions.any_ready

    @property
    def report(self) -> dict[str, Any]:
        pool = self._pool
        row = {
            "model": self._completions.name,
            "state": "serving" if self.share > 0 else "down",
            "reason": self._completions.parsers.reason,
            "token_cache": self._completions.token_cache,
            "long_chats": self._completions.long_chats,
            "context_length": self._completions.context_limit,
            "workers": pool.states,
            "share": self.share,
            "in_flight": pool.dispatcher.in_flight,
        }
        return {"pools": [row], "refused": []}

    @property
    def share(self) -> float:
        return float(len(self._pool.monitor.ready_clients()))

    def has_worker(self, worker_id: int) -> bool:
        return self._pool.has_worker(worker_id)

    def find(self, name: str) -> Sequence[Answering]:
        known = self._completions.name
        return [self] if not known or name == known else []


class ModelRoutes:
    """Handlers by route."""

    def __init__(
        self,
        directory: Directory,
        calls: CallLimits,
        rng: random.Random | None = None,
        *,
        reader: RequestReader | None = None,
    ) -> None:
        """A request counts by `calls` until it is answered. `reader` takes token ids out of bodies;
        without one their decoders find them there."""
        self._directory, self._calls = directory, calls
        self._reader = reader
        self._rng = rng or random.Random()
        self._created = int(time.time())

    @property
    def routes(self) -> Routes:
        return {
            **{route: partial(self._answer, route) for route in MODEL_ROUTES},
            "GET /v1/models": self._list_models,
            "GET /v1/models/{id}": self._show_model,
            "GET /pools": self._show_pools,
        }

    async def _answer(self, route: str, call: HttpCall) -> None:
        """Answer a request if there is capacity for it, as long as its client is there."""
        requests, account = self._calls.requests, current_account()
        refusal = requests.take(account)
        if refusal is not None:
            self._calls.on_request_refused()
            raise CapacityError(f"no capacity for the request: {refusal}")
        work = self._forward(route, call)
        try:
            await call.client.unless_gone(work)
        except CapacityError:
            self._calls.on_request_refused()
            raise
        finally:
            work.close()  # if it was not begun
            requests.give_back(account)

    async def _forward(self, route: str, call: HttpCall) -> None:
        """Have a request answered by a pool of its model. Another pool is tried if no worker is
        left in the first: a request that did not begin belongs to none yet."""
        turns = self._calls.turns
        if not turns.begins_now(CALL_S + ANSWER_S):  # with the first of its answers
            await turns.wait(CALL_S + ANSWER_S)
        outline = call.body
        if self._reader is not None:
            if (key := IDS_KEYS.get(route)) is not None:
                call = await _without_ids(call, self._reader, key)
            outline = call.body
            if (form := ITEM_FORMS.get(route)) is not None and len(outline) > LONG_BODY:
                if (apart := items_apart(outline, form)) is not None:
                    call, outline = replace(call, items=apart), apart.rest
            if len(outline) > LONG_BYTES:
                most = MOST_JSON_PARTS.get(route, MAX_JSON_PARTS)
                outline = await self._reader.check_json(outline, most)
        pools = self._pools(outline)
        if len(pools) == 1:
            await pools[0].handlers[route](call)
            return
        pools = in_order(_with_pinned(call, pools), self._rng)
        for number, pool in enumerate(pools):
            answer = _Answer(call)
            try:
                await pool.handlers[route](replace(call, send=answer.send))
                return
            except Exception as error:
                others = any(other.share > 0 for other in pools[number + 1 :])
                if answer.begun or not others or not _no_worker_took_it(error):
                    raise

    def _pools(self, outline: bytes) -> Sequence[Answering]:
        name = _NAMED.decode(outline).model
        if name is None:
            entries = [entry for entry in self._directory.entries if not entry.parent]
            if len(entries) > 1:
                raise ApiError(400, "model is required: this server has several", param="model")
            name = entries[0].name if entries else ""
        found = self._directory.find(name)
        if len(found) != 1 or not found[0].handlers:
            found = [pool for pool in found if pool.handlers]
        record = current_record() or RequestRecord()
        record.asked_model = name
        if not found:
            raise unknown_model(name, self.names)
        record.model = found[0].model
        return found

    async def _list_models(self, call: HttpCall) -> None:
        data = [self._model(entry) for entry in self._directory.entries]
        await answer_json(call, {"object": "list", "data": data})

    async def _show_model(self, call: HttpCall) -> None:
        name = call.values["id"]
        for entry in self._directory.entries:
            if entry.name == name:
                await answer_json(call, self._model(entry))
                return
        raise unknown_model(name, self.names)

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether a model can be had, and what /health shows."""
        return self._directory.any_ready, {"models": self.names}

    async def _show_pools(self, call: HttpCall) -> None:
        await answer_json(call, self._directory.report)

    @property
    def names(self) -> list[str]:
        """Of all models, adapters and other names."""
        return [entry.name for entry in self._directory.entries]

    def _model(self, entry: ModelEntry) -> dict[str, Any]:
        limit = entry.context_limit or None
        entry_shown = {
            "id": entry.name,
            "object": "model",
            "created": self._created,
            "owned_by": "dynamo-router",
            "max_model_len": limit,
            "context_window": limit,
        }
        return {**entry_shown, "parent": entry.parent} if entry.parent else entry_shown


async def _without_ids(call: HttpCall, reader: RequestReader, key: bytes) -> HttpCall:
    """The same with the token ids under the key apart."""
    ids, rest = await reader.ids_apart(call.body, key)
    return call if ids is None else replace(call, body=rest, ids=ids)


def _with_pinned(call: HttpCall, pools: Sequence[Answering]) -> Sequence[Answering]:
    """The pool of the worker that a request asks for; all, if it asks for none that is known."""
    worker_id = call.headers.get(PINNED_WORKER_KEY, "")
    if not (worker_id.isascii() and worker_id.isdecimal()):
        return pools
    return [pool for pool in pools if pool.has_worker(int(worker_id[:20]))] or pools


class _Answer:
    """Whether anything of an answer was sent."""

    def __init__(self, call: HttpCall) -> None:
        self._send = call.send
        self.begun = False

    async def send(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


def _no_worker_took_it(error: Exception) -> bool:
    """Whether no worker was there for the request, which another pool may have."""
    if isinstance(error, ApiError):
        return error.status == 503
    return status_of(error)[0] is StatusCode.UNAVAILABLE


def in_order(pools: Sequence[SomeAnswering], rng: random.Random) -> list[SomeAnswering]:
    """All of them; one comes first as often as its share is of all shares. Those without a share
    come last."""
    ranks = {
        id(pool): rng.random() ** (1.0 / pool.share) if pool.share > 0 else -1.0 for pool in pools
    }
    return sorted(pools, key=lambda pool: ranks[id(pool)], reverse=True)
