"""Which workers serve which model, by the cards that stand beside their instances. Pure.

A worker belongs to the model that its own card names, whatever its endpoint is: two models at one
endpoint have nothing in common. Workers whose cards differ where it matters (their checksums do)
cannot stand in for each other: they are different sets of one model, as during a rolling update.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.components import EndpointName, Instance
from ...workers.records import DECODE, ENCODE, PREFILL, ModelCard

TEXT_TYPES = ("Chat", "Completions")


class CardKey(NamedTuple):
    """Where a card stands."""

    endpoint: EndpointName
    instance_id: int
    suffix: str = ""
    """of an adapter's card"""

    def __str__(self) -> str:
        suffix = f"/{self.suffix}" if self.suffix else ""
        return f"{self.endpoint.prefix}{self.instance_id:x}{suffix}"


class SetName(NamedTuple):
    """Workers of one model that can stand in for each other."""

    model: str
    endpoint: EndpointName
    checksum: str

    def __str__(self) -> str:
        return f"{self.model} at {self.endpoint} ({self.checksum[:8]})"


class Refusal(NamedTuple):
    """A card that gets no requests, and why."""

    key: str
    model: str
    reason: str


@dataclass(frozen=True)
class WorkerSet:
    """The workers of one set that are registered now. A card without an instance is one of a
    worker that leaves, or is not there yet."""

    name: SetName
    card: ModelCard
    """of one of them: they differ in what does not matter"""
    cards: Mapping[int, ModelCard]
    instances: Mapping[int, Instance]
    adapters: frozenset[str] = frozenset()
    """of LoRA, that all of its workers have"""

    @property
    def needs_prefill(self) -> bool:
        """Whether its workers go on with prompts that others have computed, and only with those."""
        groups = self.card.needs
        return bool(groups) and all(PREFILL in group for group in groups)

    def shares_requests_with(self, prefill: "WorkerSet") -> bool:
        """Whether `prefill`, workers of that kind, can compute the prompts for these: they are of
        one model, one generation of its workers, and have one form of cache."""
        ours, theirs = self.name, prefill.name
        return (
            (self.card.worker_type, prefill.card.worker_type) == (DECODE, PREFILL)
            and (ours.model, ours.endpoint.namespace) == (theirs.model, theirs.endpoint.namespace)
            and self.card.partner_checksum == prefill.card.partner_checksum
        )


@dataclass(frozen=True)
class NamespaceFilter:
    """Whose models are served: of one namespace, of those that begin alike, or of all."""

    namespace: str = ""
    """empty or, as Dynamo has it, `dynamo`: all"""
    prefix: str = ""
    """goes before it; admits itself, and what goes on behind a hyphen, as updates write it"""

    def admits(self, namespace: str) -> bool:
        if self.prefix:
            return namespace == self.prefix or namespace.startswith(f"{self.prefix}-")
        return self.namespace in ("", "dynamo", namespace)


def worker_sets(
    instances: Iterable[Instance],
    cards: Mapping[CardKey, ModelCard | str],
    wanted: NamespaceFilter = NamespaceFilter(),  # noqa: B008  # it is frozen
) -> tuple[dict[SetName, WorkerSet], list[Refusal]]:
    """The sets, and the cards that are in none. `cards` has the reason in place of one that
    cannot be read."""
    serving = {(each.name, each.instance_id): each for each in instances}
    found: dict[SetName, dict[int, ModelCard]] = {}
    adapters: dict[tuple[EndpointName, int], set[str]] = {}
    refused: list[Refusal] = []
    for key, card in sorted(cards.items(), key=lambda item: item[0]):
        if not wanted.admits(key.endpoint.namespace):
            continue
        reason = card if isinstance(card, str) else _why_not(card)
        if reason is not None or isinstance(card, str):
            model = "" if isinstance(card, str) else card.name
            refused.append(Refusal(str(key), model, reason or ""))
        elif card.adapter:
            adapters.setdefault((key.endpoint, key.instance_id), set()).add(card.adapter)
        else:
            name = SetName(card.name, key.endpoint, card.checksum)
            found.setdefault(name, {})[key.instance_id] = card
    sets = {}
    for name, members in found.items():
        there = {
            worker_id: serving[name.endpoint, worker_id]
            for worker_id in members
            if (name.endpoint, worker_id) in serving
        }
        known = [adapters.get((name.endpoint, worker_id), set()) for worker_id in members]
        first = members[min(members)]
        sets[name] = WorkerSet(name, first, members, there, frozenset(set.intersection(*known)))
    return sets, [*refused, *_without_cards(serving, cards, wanted)]


def _why_not(card: ModelCard) -> str | None:
    """Why a card's worker gets no requests; None if it does."""
    others = {kind for group in card.needs for kind in group} - {PREFILL, DECODE}
    if card.worker_type == ENCODE or others:
        return f"a worker for {card.worker_type} needs others beside it, which is not served yet"
    if card.model_input != "Tokens":
        return f"it takes {card.model_input}, not token ids"
    if card.worker_type == PREFILL:
        return None
    if not any(kind in card.model_type for kind in TEXT_TYPES):
        return f"its model type is {card.model_type!r}, neither of {' and '.join(TEXT_TYPES)}"
    return None


def _without_cards(
    serving: Mapping[tuple[EndpointName, int], Instance],
    cards: Mapping[CardKey, ModelCard | str],
    wanted: NamespaceFilter,
) -> Iterator[Refusal]:
    """Instances without a card at an endpoint that has models: what they serve is unknown."""
    endpoints = {key.endpoint for key in cards}
    for endpoint, worker_id in sorted(serving):
        key = CardKey(endpoint, worker_id)
        if endpoint in endpoints and key not in cards and wanted.admits(endpoint.namespace):
            yield Refusal(str(key), "", "it is registered without a model card")
