"""What an engine says about its model and itself, and how a fleet says it as if it were one."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter, mul
from typing import Any
from weakref import WeakValueDictionary

from .transfer_facts import TransferFacts


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The answers to GetModelInfo and GetServerInfo. 0 and "" mean that the engine does not say."""

    model_id: str = ""
    max_input_len: int = 0
    max_seq_len: int = 0
    max_batch_size: int = 0
    vocab_size: int = 0
    hidden_size: int = 0
    num_layers: int = 0
    num_heads: int = 0
    supported_features: tuple[str, ...] = ()
    version: str = ""
    backend: str = ""
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0
    context_parallel_size: int = 0
    world_size: int = 0
    settings: dict[str, int] = field(default_factory=dict)
    """the features of the form name=number, such as kv_block_size=64"""
    transfer: TransferFacts = TransferFacts()
    """found by its client, or published in its card"""

    @property
    def longest_prompt(self) -> int:
        """Tokens in the longest prompt; 0 where unknown."""
        limit = self.max_input_len or self.max_seq_len
        return min(limit, self.max_seq_len) if self.max_seq_len else limit

    def check_prompt(self, length: int, largest_token: int) -> str | None:
        """Why a prompt cannot be had by this model; None if it can, as far as is known."""
        limit = self.longest_prompt
        if limit and length > limit:
            return f"a prompt of {length} tokens is longer than the model's limit of {limit}"
        if self.vocab_size and largest_token >= self.vocab_size:
            return (
                f"token id {largest_token} is out of range: the model's vocabulary has "
                f"{self.vocab_size} tokens"
            )
        return None

    def holds(self, length: int, output: int) -> bool:
        """Whether a context has room for a prompt and so long an answer, as far as is known."""
        return not self.max_seq_len or length + output <= self.max_seq_len

    def as_message(self, kind: Any) -> Any:
        """These facts as a GetModelInfoResponse or GetServerInfoResponse, whichever `kind` is."""
        names = [descriptor.name for descriptor in kind.DESCRIPTOR.fields]
        return kind(**{name: getattr(self, name) for name in names})


def facts_of(model: Any, server: Any) -> EngineFacts:
    """Read a GetModelInfoResponse and a GetServerInfoResponse. A negative number counts as none.

    The same answers give the same object as long as it is referenced.
    """
    values: dict[str, Any] = {}
    for message in (model, server):
        for descriptor in message.DESCRIPTOR.fields:
            value = getattr(message, descriptor.name)
            values[descriptor.name] = max(0, value) if isinstance(value, int) else value
    features = values["supported_features"] = tuple(values["supported_features"])
    pairs = (feature.partition("=") for feature in features)
    settings = {name: int(value) for name, _, value in pairs if value.isdecimal()}
    known = {descriptor.name for descriptor in fields(EngineFacts)}
    chosen = {name: value for name, value in values.items() if name in known}
    facts = EngineFacts(settings=settings, **chosen)
    return _KNOWN.setdefault(tuple(chosen.values()), facts)  # the settings follow from the features


# A request goes to those that can take it; what engines do side by side adds up.
_LARGEST = ("max_input_len", "max_seq_len", "vocab_size")
_SUMMED = ("max_batch_size", "world_size")
_SUMMED_SETTINGS = ("total_kv_blocks", "max_num_seqs")
_PLAIN = [f.name for f in fields(EngineFacts) if f.name not in ("supported_features", "settings")]
# Of the engines that there are; those that say the same share one, so that merging counts them.
_KNOWN: WeakValueDictionary[tuple[object, ...], EngineFacts] = WeakValueDictionary()


def merge_facts(fleet: Iterable[EngineFacts]) -> EngineFacts:
    """The facts of a fleet as if it were one engine.

    Limits are the largest one known, capacities are summed, features are those of all; where
    engines differ otherwise, the first one speaks.
    """
    everyone = list(fleet)
    times = list(Counter(map(id, everyone)).values())  # in the order of first appearance,
    engines = list({id(engine): engine for engine in everyone}.values())  # as these are
    if not engines:
        return EngineFacts()
    first = engines[0]
    merged: dict[str, Any] = {}
    for name in _PLAIN:
        values = map(attrgetter(name), engines)
        if name in _LARGEST:
            merged[name] = max(values)
        elif name in _SUMMED:
            merged[name] = sum(map(mul, values, times))
        else:
            merged[name] = next(filter(None, values), getattr(first, name))
    settings_of = [engine.settings for engine in engines]
    settings = {}
    for name in dict.fromkeys([*first.settings, *_SUMMED_SETTINGS]):
        with suppress(KeyError):  # one of them does not say
            numbers = list(map(itemgetter(name), settings_of))
            if name in _SUMMED_SETTINGS:
                settings[name] = sum(map(mul, numbers, times))
            elif numbers.count(numbers[0]) == len(numbers):
                settings[name] = numbers[0]
    features = [engine.supported_features for engine in engines]
    plain = [
        feature
        for feature in first.supported_features
        if feature.partition("=")[0] not in first.settings
        and all(feature in others for others in features)
    ]
    merged["settings"] = settings
    merged["supported_features"] = (*plain, *(f"{name}={n}" for name, n in settings.items()))
    return EngineFacts(**merged)
