"""VirtualKeys writes the keys by which Dynamo's planner asks an environment for engines;
VirtualFollower is such an environment: it reads them, and has another Connector do it.

| key in `v1/{namespace}/planner` | value, decimal text | written by |
|---|---|---|
| `num_prefill_workers`, `num_decode_workers` | engines wanted | planner |
| `decision_id` | grows with each decision; written last, so that the numbers are whole | planner |
| `scaled_decision_id` | the last decision that is in place | environment |

Source: Dynamo's planner documentation (virtual deployments), and its published client,
`dynamo._core.VirtualConnectorClient` of ai-dynamo-runtime 1.6.1.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from ...base.clock import Clock
from ...process.supervised import stopped, supervise
from ...runtime.kv_stores import Bucket, KeyValueStore, StoreError
from ...workers.records import DECODE, PREFILL
from .connector import Connector, ConnectorError

PREFILL_KEY, DECODE_KEY = "num_prefill_workers", "num_decode_workers"
DECISION_KEY, SCALED_KEY = "decision_id", "scaled_decision_id"
MAX_WAIT_S = 1800.0
"""A decision that is not in place for so long is followed by another one: Dynamo's time."""
POLL_S = 0.2
ABSENT = -1


def planner_bucket(store: KeyValueStore, namespace: str) -> Bucket:
    return store.bucket(f"v1/{namespace}/planner")


async def read_number(bucket: Bucket, key: str) -> int:
    """ABSENT if there is none; ConnectorError if it is no number, or the store is away."""
    try:
        entry = await bucket.get(key)
    except StoreError as error:
        raise ConnectorError(str(error)) from None
    if entry is None:
        return ABSENT
    text = entry.value.decode("utf-8", "replace").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise ConnectorError(f"{bucket.name}/{key} is {text[:40]!r}, not a number")
    return int(text)


class VirtualKeys:
    """A Connector: the environment chooses which engines go. Engines that are not prefill ones are
    decode ones to it."""

    names_victims = False

    def __init__(self, store: KeyValueStore, namespace: str, other_role: str, clock: Clock) -> None:
        """`other_role`: decode or aggregated, whichever the fleet has."""
        self._bucket = planner_bucket(store, namespace)
        self._other_role = other_role
        self._clock = clock
        self._written_at = clock.now()

    async def start(self) -> None:
        """What is written already is gone on from."""

    async def asked(self) -> Mapping[str, int] | None:
        prefill, other = await self._numbers()
        if ABSENT in (prefill, other):
            return None
        found = {self._other_role: other}
        return found if self._other_role != DECODE else {**found, PREFILL: prefill}

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        numbers = (wanted.get(PREFILL, 0), wanted.get(self._other_role, 0))
        if await self._numbers() == numbers:
            return
        decision = await read_number(self._bucket, DECISION_KEY)
        scaled = await read_number(self._bucket, SCALED_KEY)
        if scaled < decision and self._clock.now() - self._written_at < MAX_WAIT_S:
            return  # the environment is at the one before; asked again with the next step
        try:
            for key, number in zip((PREFILL_KEY, DECODE_KEY), numbers, strict=True):
                await self._bucket.put(key, str(number).encode())
            # An environment may have counted on from where an earlier planner was.
            await self._bucket.put(DECISION_KEY, str(max(decision, scaled) + 1).encode())
        except StoreError as error:
            raise ConnectorError(str(error)) from None
        self._written_at = self._clock.now()

    async def close(self) -> None:
        """The keys stay: they are the environment's to read."""

    async def _numbers(self) -> tuple[int, int]:
        return (
            await read_number(self._bucket, PREFILL_KEY),
            await read_number(self._bucket, DECODE_KEY),
        )


class FollowedEngines(Connector, Protocol):
    """Engines that the follower may choose from."""

    def ids(self, role: str) -> list[int]:
        """Of the engines that take requests, oldest first."""
        ...


class VirtualFollower:
    """Does what the keys say, from `start` to `close`, by engines of another Connector."""

    def __init__(
        self, store: KeyValueStore, namespace: str, engines: FollowedEngines, other_role: str
    ) -> None:
        self._bucket = planner_bucket(store, namespace)
        self._engines = engines
        self._other_role = other_role
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._engines.start()
        self._task = supervise("virtual-follower", self._follow)

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        await stopped(task)
        await self._engines.close()

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """One turn: ask for what is wanted, and note it once it is in place. ConnectorError."""
        decision = await read_number(self._bucket, DECISION_KEY)
        if decision == ABSENT or decision == await read_number(self._bucket, SCALED_KEY):
            return
        wanted = {
            PREFILL: await read_number(self._bucket, PREFILL_KEY),
            self._other_role: await read_number(self._bucket, DECODE_KEY),
        }
        wanted = {role: max(0, count) for role, count in wanted.items()}
        if self._other_role != DECODE:
            del wanted[PREFILL]
        if await self._in_place(wanted) and decision == await read_number(
            self._bucket, DECISION_KEY
        ):
            try:
                await self._bucket.put(SCALED_KEY, str(decision).encode())
            except StoreError as error:
                raise ConnectorError(str(error)) from None

    async def _in_place(self, wanted: Mapping[str, int]) -> bool:
        there = {role: self._ids(role) for role in wanted}
        surplus = {role: len(there[role]) - count for role, count in wanted.items()}
        leaving = {
            role: tuple(there[role][-count:]) for role, count in surplus.items() if count > 0
        }
        await self._engines.apply(wanted, leaving)
        return all(len(self._ids(role)) == count for role, count in wanted.items())

    def _ids(self, role: str) -> list[int]:
        return self._engines.ids(role)
