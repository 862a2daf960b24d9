"""What an adversity run does: a list of steps, made from one integer, written one to a line.

A step is one JSON object, so that a failing run's list can be cut down by hand and replayed.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random

from support.chats.clients import CHAT_KINDS

ENGINES = 3
LAST = ENGINES - 1
"""the engine that has a process of its own"""

# Faults of an engine or of the way to it. Those that lose streams are never two at a time: a
# request under which two connections broke is not tried a third time, on purpose.
LOSING = (
    *("crash", "restart", "hang", "cut", "refuse", "half_open", "deaf", "garbage", "bandwidth"),
)
LOSING_A_PROCESS = ("kill", "freeze")
BOTHERSOME = ("slow", "fail", "empty", "latency", "lossy", "doubling", "shuffling")
OF_NATS = ("nats_cut", "nats_stall", "nats_kill", "nats_loss", "nats_twice", "nats_late")
OF_CLIENTS = ("client_cut", "client_stall", "client_latency", "client_garbage")
ENGINE_FAULTS = frozenset((*LOSING, *LOSING_A_PROCESS, *BOTHERSOME))

KINDS = (
    *("stream", "unary", "leaver", "blocked", "deadline", "pinned", "aborted", "remote"),
    *("selector", "junk", "huge_id", "same_id", "raw_bytes"),
    *CHAT_KINDS,
)
"""Clients, see clients.py, and clients.py of chats. Each step has some of every kind."""


@dataclass(frozen=True)
class FaultSpec:
    """A fault, the engine it concerns (0 where it is none's), and how bad it is, 0 to 1."""

    name: str
    engine: int = 0
    degree: float = 0.5


@dataclass(frozen=True)
class Step:
    """Some clients, faults in the midst of them, more clients; then all is well again."""

    seed: int
    """of prompts, lengths, moments"""
    faults: tuple[FaultSpec, ...] = ()
    clients: dict[str, int] = field(default_factory=dict)
    """kind -> how many; half of them come after the faults"""

    @property
    def loses_streams(self) -> bool:
        """Whether a stream that has begun may be lost."""
        return any(fault.name in (*LOSING, *LOSING_A_PROCESS) for fault in self.faults)

    @property
    def faulty_engines(self) -> set[int]:
        return {fault.engine for fault in self.faults if fault.name in ENGINE_FAULTS}

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def step_of(line: str) -> Step:
    """Read `Step.to_line` back."""
    told = json.loads(line)
    told["faults"] = tuple(FaultSpec(**fault) for fault in told.get("faults", ()))
    return Step(**told)


def steps_of(text: str) -> list[Step]:
    return [step_of(line) for line in text.splitlines() if line.strip()]


def to_text(steps: Iterable[Step]) -> str:
    return "\n".join(step.to_line() for step in steps)


def schedule_of(seed: int, length: int) -> list[Step]:
    """The steps that a seed stands for. A longer list begins as a shorter one."""
    random = Random(seed)
    losing = _without_end(random, (*LOSING, *LOSING_A_PROCESS))
    bothersome = _without_end(random, BOTHERSOME)
    elsewhere = _without_end(random, (*OF_NATS, *OF_CLIENTS))
    steps = []
    for _ in range(length):
        engines = random.sample(range(ENGINES), ENGINES)
        faults = []
        if random.random() < 0.8:
            name = next(losing)
            if name in LOSING_A_PROCESS:
                engines.remove(LAST)
                engines.insert(0, LAST)
            faults.append(FaultSpec(name, engines[0], _degree(random)))
        if random.random() < 0.6:
            faults.append(FaultSpec(next(bothersome), engines[1], _degree(random)))
        if random.random() < 0.7:
            faults.append(FaultSpec(next(elsewhere), 0, _degree(random)))
        clients = {kind: random.randint(1, 3) for kind in KINDS}
        clients["stream"] += random.randint(4, 10)
        clients["unary"] += random.randint(1, 5)
        steps.append(Step(random.getrandbits(32), tuple(faults), clients))
    return steps


def _without_end(random: Random, words: tuple[str, ...]) -> Iterator[str]:
    """Every word before any comes again, in an order of the seed's."""
    while True:
        yield from random.sample(words, len(words))


def _degree(random: Random) -> float:
    return round(random.uniform(0.1, 1.0), 2)
