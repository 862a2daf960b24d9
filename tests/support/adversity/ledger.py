"""The clients' side of the books: how each request ended, and what the router may say of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

NOT_COUNTED = ""
"""In place of a status: the request may never have reached the router's dispatcher."""

OWN_ERRORS = ("internal", "unknown")
METRIC = "dynamo_component_router_requests_total"


@dataclass
class Entry:
    """One request as its client saw it."""

    kind: str
    request_id: str
    code: str = ""
    """gRPC's name of the status that its client was told, in small letters"""
    details: str = ""
    messages: int = 0
    counted_as: frozenset[str] = frozenset()
    """the statuses under which the router may have counted it"""
    excused: bool = False
    """it went to a faulty engine alone, by its own wish: whatever that said was passed on"""
    wrong: list[str] = field(default_factory=list)
    """what must not be: tokens out of order, a failure without a reason"""

    def describe(self) -> str:
        told = f"{self.kind} {self.request_id}: {self.code}, {self.messages} messages"
        return f"{told}, {self.details[:300]!r}: {'; '.join(self.wrong)}"


class Ledger:
    """All requests so far."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def open(self, kind: str, request_id: str) -> Entry:
        entry = Entry(kind, request_id)
        self.entries.append(entry)
        return entry

    def wrong(self) -> list[str]:
        return [entry.describe() for entry in self.entries if entry.wrong]

    def own_errors(self, counted: Counter[str]) -> Counter[str]:
        """What the router counted as its own errors, and no engine said."""
        said = Counter(entry.code for entry in self.entries if entry.excused)
        return Counter({code: counted[code] for code in OWN_ERRORS}) - said

    def contradictions(self, counted: Counter[str]) -> list[str]:
        """Where the router's counts by status cannot be those of these requests."""
        return contradictions([entry.counted_as for entry in self.entries], counted)


def contradictions(claims: Iterable[frozenset[str]], counted: Counter[str]) -> list[str]:
    """What is wrong with `counted` if each request was counted once, as one of its claim's
    statuses, or not at all where the claim says so.

    By Hall's theorem: for every set of statuses, the requests that can only be counted there are
    no more than were counted there, and those are no more than the requests that can be.
    """
    kinds = Counter(claims)
    statuses = sorted({status for claim in kinds for status in claim} | set(counted))
    statuses = [status for status in statuses if status != NOT_COUNTED]
    found = []
    for number in range(1, 1 << len(statuses)):
        chosen = {status for bit, status in enumerate(statuses) if number >> bit & 1}
        least = sum(n for claim, n in kinds.items() if claim <= chosen)
        most = sum(n for claim, n in kinds.items() if claim & chosen)
        seen = sum(counted[status] for status in chosen)
        if not least <= seen <= most:
            found.append(f"{sorted(chosen)}: {seen} counted, {least} to {most} sent")
    return found


def statuses_of(samples: dict[str, float]) -> Counter[str]:
    """The router's counts of requests that ended, by status."""
    prefix = f'{METRIC}{{status="'
    return Counter(
        {
            name.removeprefix(prefix).removesuffix('"}'): int(value)
            for name, value in samples.items()
            if name.startswith(prefix)
        }
    )
