"""Whose request it is, and what its headers and extensions say of its way."""

import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from ..base.errors import InvalidRequestError
from ..base.identity import WorkerWithDpRank
from ..router.admission import (
    NO_OBJECTIVES,
    NORMAL,
    SLO_KEYS,
    Objectives,
    Urgency,
    read_objectives,
)
from ..router.affinity import ALL_SESSION_KEYS, Session, read_session
from ..router.pairs import PairDecision
from ..router.placement import Computed
from ..server.access import Caller, current_account
from ..server.dispatch import Dispatcher, Put, ReadRequest, Write
from ..server.services import METADATA_KEYS, read_metadata
from .openai import ApiError, Sampling
from .processor import Tenant

EXPLAIN_KEY = "x-dynamo-explain"
TENANT_KEY = "x-tenant-id"
ALIASES = {
    "x-worker-instance-id": "x-dynamo-worker-instance-id",
    "x-dp-rank": "x-dynamo-dp-rank",
    "x-data-parallel-rank": "x-dynamo-dp-rank",
    "x-dynamo-request-priority": "x-dynamo-priority",
}
"""Headers that other frontends know under another name."""
HANDOFF_KEYS = frozenset(
    ("x-prefiller-host-port", "x-kv-cache-source-host-port", "x-encoder-hosts-ports",
     "x-data-parallel-host-port")
)  # fmt: skip
"""Headers by which other gateways name hosts that engines connect to: no client's to set."""
_READ_KEYS = METADATA_KEYS | SLO_KEYS | ALL_SESSION_KEYS
"""Headers that say something of a request's way; most requests have none of them."""
LOUD_HEADERS = _READ_KEYS | ALIASES.keys() | HANDOFF_KEYS | {EXPLAIN_KEY}
"""All headers that say something of a request or its answer beside who asks, and in which cache
namespace."""
NOTHING_MORE: frozenset[str] = frozenset()
_INT63 = (1 << 63) - 1


class Origin(NamedTuple):
    """Of one request. `received`: monotonic time."""

    answer_id: str
    caller: Caller
    metadata: Sequence[tuple[str, str | bytes]]
    pinned: WorkerWithDpRank | None
    urgency: Urgency
    objectives: Objectives
    headers: Sequence[tuple[str, str | bytes]]
    """all of them, and what `nvext` says in place of some"""
    session: Session | None
    salt: int | None
    """of its cache namespace: requests with another one share no cached block with it"""
    extras: frozenset[str]
    """the extra facts its client asks for: see EXTRA_FIELDS"""
    received: float

    def generate(
        self,
        dispatcher: Dispatcher,
        request: bytes | ReadRequest,
        respond: Write,
        *,
        put: Put | None = None,
        pinned: WorkerWithDpRank | None = None,
        computed: Computed | None = None,
    ) -> Coroutine[Any, Any, PairDecision]:
        """Have a GenerateRequest answered in its name; see `Dispatcher.generate`.

        Stop strings are the caller's to find: `respond` gets text behind them, too.
        """
        return dispatcher.generate(
            request,
            respond,
            put=put,
            metadata=self.metadata,
            pinned=pinned,
            computed=computed,
            urgency=self.urgency,
            objectives=self.objectives,
            call_metadata=self.headers,
            session=self.session,
            caller=self.caller,
            stops_held=True,
        )


def origin_of(
    request: Sampling, headers: Mapping[str, str], caller: Caller, request_id: str, prefix: str
) -> Origin:
    """Read it; ApiError 400 if something in it makes no sense. A header beats `nvext`.

    `prefix` begins the answer's id.
    """
    nvext = request.nvext
    given: dict[str, str | bytes] = {} if nvext is None else dict(nvext.headers)
    if not ALIASES.keys().isdisjoint(headers):
        headers = _without_aliases(headers)
    given.update(headers)
    if not HANDOFF_KEYS.isdisjoint(given):
        name = min(HANDOFF_KEYS.intersection(given))
        raise ApiError(400, f"{name} is the router's to set", param=name)
    items = tuple(given.items())
    forwarded: Sequence[tuple[str, str | bytes]] = ()
    pinned, urgency, objectives, session = None, NORMAL, NO_OBJECTIVES, None
    if not _READ_KEYS.isdisjoint(given):
        try:
            forwarded, pinned, urgency = read_metadata(items)
            objectives = read_objectives(items)
            session = read_session(items, caller.name, current_account())
        except InvalidRequestError as error:
            raise ApiError(400, str(error)) from None
    extras = NOTHING_MORE if nvext is None else frozenset(nvext.extra_fields)
    if headers.get(EXPLAIN_KEY) == "1":
        extras |= {"worker_id", "decision"}
    received = time.monotonic()
    return Origin(
        new_answer_id(prefix, request_id),
        caller,
        forwarded,
        pinned,
        urgency,
        objectives,
        items,
        session,
        _salt(headers, request),
        extras,
        received,
    )


def _without_aliases(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers under our own names; ApiError 400 if two names of one thing have different values."""
    kept = {name: value for name, value in headers.items() if name not in ALIASES}
    named_by = dict(zip(kept, kept, strict=True))
    for name, ours in ALIASES.items():
        if (value := headers.get(name)) is None:
            continue
        other = named_by.setdefault(ours, name)
        if kept.setdefault(ours, value) != value:
            raise ApiError(400, f"{name} and {other} have different values", param=name)
    return kept


def new_answer_id(prefix: str, request_id: str) -> str:
    """Unique, also where a client uses an id of its own again."""
    unique = xxh3_64_intdigest(f"{request_id}/{time.monotonic_ns()}".encode())
    return f"{prefix}{unique:016x}"


def tenant_of(headers: Mapping[str, str], request: Sampling | None = None) -> Tenant:
    """Whose text a request has, for what is kept of texts."""
    return Tenant(current_account(), _salt(headers, request))


def _salt(headers: Mapping[str, str], request: Sampling | None) -> int | None:
    """The cache namespace as the engines' protocol has it: a number."""
    text: str | None = None
    if request is not None:
        if request.nvext is not None:
            text = request.nvext.cache_salt
        text = text or request.cache_salt
    return salt_by(headers, text)


def salt_by(headers: Mapping[str, str], salt: str | None) -> int | None:
    """The same of a request with this salt, which a header beats."""
    return salt_of(headers.get(TENANT_KEY) or salt)


def salt_of(text: str | None) -> int | None:
    """The number that a cache namespace is to engines; None: it is that of all others."""
    return None if not text else xxh3_64_intdigest(text.encode()) & _INT63
