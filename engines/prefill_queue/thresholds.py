"""Thresholds: which prompts a decode engine computes itself, by settings, a router, or the store.

The design documents' keys: `/{namespace}/disagg_router/max_local_prefill_length` and
`.../max_prefill_queue_size`, decimal numbers; and, of one model,
`public/components/disagg_router/models/chat/{model}`, JSON {"max_local_prefill_length": N}. They
are read and followed, not written. What is no such value counts as absent.
"""

import asyncio
from typing import NamedTuple

import msgspec

from ...base.errors import UNREADABLE
from ...process.supervised import stopped, supervise
from ...runtime.discovery import PrefixWatcher, key_string
from ...runtime.kv_stores import Entry, KeyValueStore

MAX_LOCAL_PREFILL_LENGTH = 1000
MAX_PREFILL_QUEUE_SIZE = 3
"""The design documents' own, where nothing else decides."""
LENGTH, SIZE = "max_local_prefill_length", "max_prefill_queue_size"
_MODELS = "public/components/disagg_router/models/chat"
_MOST = 2**31


class PrefillThresholds(NamedTuple):
    """None: no threshold of that kind."""

    max_local_prefill_length: int | None = None
    max_prefill_queue_size: int | None = None

    def over(self, other: "PrefillThresholds") -> "PrefillThresholds":
        """These, and where there are none the other's."""
        return PrefillThresholds(
            *(theirs if ours is None else ours for ours, theirs in zip(self, other, strict=True))
        )

    def is_short(self, uncached_tokens: int) -> bool:
        """Whether the decode engine computes a prompt itself that has these tokens to compute."""
        most = self.max_local_prefill_length
        return most is not None and uncached_tokens <= most

    def is_full(self, queued: int) -> bool:
        """Whether it does because of the prompts in the queue."""
        return self.max_prefill_queue_size is not None and queued >= self.max_prefill_queue_size


DOCUMENTED = PrefillThresholds(MAX_LOCAL_PREFILL_LENGTH, MAX_PREFILL_QUEUE_SIZE)


class _ModelConfig(msgspec.Struct):
    max_local_prefill_length: int


class Thresholds:
    """The store's, followed from `start` to `close`, over the settings'. Without a store, or while
    it is away, what is known stands."""

    def __init__(
        self,
        settings: PrefillThresholds,
        store: KeyValueStore | None = None,
        *,
        namespace: str = "",
        model: str = "",
    ) -> None:
        self._settings = settings
        self._model = model
        self._watchers: list[PrefixWatcher[str, int]] = []
        if store is not None:
            self._watchers = [
                PrefixWatcher(store.bucket(f"/{namespace}/disagg_router"), key_string, _decimal),
                PrefixWatcher(store.bucket(_MODELS), key_string, _of_model, prefix=model),
            ]
        self._task = None if store is None else supervise("prefill thresholds", self._start)

    @property
    def are_given(self) -> bool:
        """Whether settings or the store have one: then the engine decides where no router does."""
        return self.stored.over(self._settings) != PrefillThresholds()

    async def _start(self) -> None:
        await asyncio.gather(*(watcher.start() for watcher in self._watchers))

    @property
    def stored(self) -> PrefillThresholds:
        """Of the store; a model's own before the namespace's."""
        if not self._watchers:
            return PrefillThresholds()
        shared, models = (watcher.values for watcher in self._watchers)
        return PrefillThresholds(models.get("", shared.get(LENGTH)), shared.get(SIZE))

    def found(self, given: PrefillThresholds | None) -> PrefillThresholds:
        """What counts for a request. `given`: a router's that has decided for a remote prefill;
        None: no router has decided anything."""
        other = DOCUMENTED if given is None else given
        return self.stored.over(self._settings).over(other)

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        await stopped(task)
        for watcher in self._watchers:
            await watcher.close()


def _decimal(entry: Entry) -> int:
    """ValueError for no number of 0 to 2^31."""
    return _checked(int(entry.value.decode()))


def _of_model(entry: Entry) -> int:
    try:
        found = msgspec.json.decode(entry.value, type=_ModelConfig)
    except (*UNREADABLE, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None
    return _checked(found.max_local_prefill_length)


def _checked(number: int) -> int:
    if not 0 <= number <= _MOST:
        raise ValueError(f"{number} is not from 0 to {_MOST}")
    return number
