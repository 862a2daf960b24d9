"""The decision between a local and a remote prefill, from facts of one moment.

`forecast` compares two sums of seconds:

    local  = waiting + prefill + delay + price * stalled  on the worker that would do both
    remote = waiting + prefill + delay                    on the prefill worker
             + hand-off                                   and to the decode worker
    waiting = w + w * w / LONG_WAIT_S                      of w = wait + memory

and is remote where remote + margin < local. A long wait counts more than its seconds: prompts that
come later share its steps, and a first token that is late of two ways is late for its objective.
`delay` are the seconds by which prompts there wait longer, as much each as its own. `stalled` are
those by which answers there do; their price is HARM while that worker's answers are fast, and grows
with the time that they take for a token:

    price = HARM * (1 + (itl / disagg_itl_ms) ** POWER)
    itl   = a decode step / the share of its time that prompts of late have left for them

The other policies look at lengths and thresholds alone, as those of the peers whose names they
have.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from typing import NamedTuple

from ...base.identity import WorkerWithDpRank
from .config import DisaggConfig
from .links import LinkEstimate

HARM = 0.1
"""What a second of an answer counts beside one of the prompt that is decided."""
LONG_WAIT_S = 0.1
"""A wait of so long counts twice, one of twice as long three times."""
POWER = 6
"""How steeply the price of harm grows. Chosen on the traffic of the split `train`."""
MOST_LATE = 1e3
"""Times of --disagg-itl-ms that a token may take, at most: beyond, nothing changes a decision."""
LEAST_LEFT = 0.05
"""Share of its time that a worker has left for answers, at least."""
RECENT_S = 8.0
"""Time constant of what is recent."""
MOST_SHARES = 4096
MARGIN = 0.05
"""Of the local sum, by which a remote prefill must be better, and at least a step of the engine."""
KV_BYTES_PER_TOKEN = 131_072
"""Of an 8B model in 16 bits: 2 x 32 layers x 8 KV heads x 128 x 2 bytes."""


class LocalForecast(NamedTuple):
    """Seconds of a prompt on the worker that also decodes its answer."""

    wait_s: float  # until its prefill begins
    prefill_s: float
    memory_s: float  # until its blocks have room
    delay_s: float  # that other prompts wait longer, summed over them
    stalled_s: float  # that answers do
    step_s: float = 0.0  # of a step of that engine: the least margin
    price: float = HARM

    @property
    def first_token_s(self) -> float:
        """Until its first token: the seconds of the prompt alone."""
        return self.wait_s + self.prefill_s + self.memory_s

    @property
    def total_s(self) -> float:
        own_s = _waited(self.wait_s + self.memory_s) + self.prefill_s
        return own_s + self.delay_s + self.price * self.stalled_s


class RemoteForecast(NamedTuple):
    """Seconds of a prompt on a prefill worker, and of its way to the decode worker."""

    wait_s: float
    prefill_s: float
    delay_s: float
    handoff_s: float  # from the end of the prefill to the first token of the decode worker
    memory_s: float  # until its blocks have room on the decode worker
    is_ahead: bool = False  # the prefill worker's token is the client's first

    @property
    def first_token_s(self) -> float:
        own_s = self.wait_s + self.prefill_s
        return own_s if self.is_ahead else own_s + self.handoff_s + self.memory_s

    @property
    def total_s(self) -> float:
        landing_s = self.handoff_s + _waited(self.memory_s)
        if self.is_ahead:  # an answer that waits for its second token
            return _waited(self.wait_s) + self.prefill_s + self.delay_s + HARM * landing_s
        own_s = _waited(self.wait_s + self.memory_s) + self.prefill_s
        return own_s + self.delay_s + self.handoff_s


class Landing(NamedTuple):
    """A prompt on its way from a prefill worker to a decode worker."""

    source: int
    """its prefill worker's id"""
    target: WorkerWithDpRank
    size: int
    """bytes of KV cache"""
    shared: int
    """and of those that were on their way from that worker, or to that one, when it was decided:
    they share its network card"""
    until: float = math.inf
    """when it is taken to have landed, without a call of `on_landed`"""


def _waited(wait_s: float) -> float:
    """What a wait counts for."""
    return wait_s * (1 + wait_s / LONG_WAIT_S)


class PairFacts(NamedTuple):
    """What the decision is made from. `cached_tokens` are the prompt's on the decode worker that
    would compute it; a forecast is None where there is none."""

    isl: int
    cached_tokens: int
    prefill_busy: bool = False  # every prefill worker is above its threshold
    decode_busy: bool = False  # the decode worker would be above its own
    local: LocalForecast | None = None
    remote: RemoteForecast | None = None

    @property
    def uncached_tokens(self) -> int:
        return max(0, self.isl - self.cached_tokens)


REASONS: Mapping[str, Sequence[str]] = {
    "remote": ("always", "decode_busy", "faster", "long", "noncached", "prefill_calm"),
    "local": (
        "aggregated", "cached", "no_pair", "no_room", "not_faster", "off", "prefill_busy", "short",
        "whole",
    ),
}  # fmt: skip
"""Of verdicts, by where the prompt is computed."""


class Verdict(NamedTuple):
    """`reason` is a word for metrics. The sums are None where none was made."""

    remote: bool
    reason: str
    local_s: float | None = None
    remote_s: float | None = None
    first_token_s: float | None = None  # of the way that was chosen, from the decision on


def judge(config: DisaggConfig, facts: PairFacts) -> Verdict:
    """Remote or local, where both are possible. The same facts give the same verdict."""
    if config.disagg != "conditional":
        return Verdict(config.disagg == "always", config.disagg)
    policy = config.disagg_policy
    if policy == "forecast" and facts.local is not None and facts.remote is not None:
        local_s, remote_s = facts.local.total_s, facts.remote.total_s
        margin_s = max(MARGIN * local_s, facts.local.step_s)
        remote = remote_s + margin_s < local_s
        way = facts.remote if remote else facts.local
        reason = "faster" if remote else "not_faster"
        return Verdict(remote, reason, local_s, remote_s, way.first_token_s)
    if policy == "noncached":
        remote = 0 < config.disagg_noncached_tokens <= facts.uncached_tokens
        return Verdict(remote, "noncached" if remote else "cached")
    if facts.decode_busy:
        return Verdict(True, "decode_busy")
    by_length = policy in ("isl_bounding", "isl_or_load", "forecast")
    if by_length and _is_short(config, facts):
        return Verdict(False, "short")
    if policy in ("prefill_load", "isl_or_load") and facts.prefill_busy:
        return Verdict(False, "prefill_busy")
    return Verdict(True, "long" if by_length else "prefill_calm")


def _is_short(config: DisaggConfig, facts: PairFacts) -> bool:
    tokens, ratio = config.disagg_eff_isl_threshold, config.disagg_eff_isl_ratio_threshold
    return facts.uncached_tokens < tokens and facts.uncached_tokens < ratio * facts.isl


class PairRule:
    """The settings, what was learnt of hand-offs, and what was decided how often. Of one pool.

    `aggregated` are ids of workers among the decode workers that take no hand-off. Where a
    forecast has no data, `isl_bounding` decides.
    """

    def __init__(
        self,
        config: DisaggConfig,
        *,
        aggregated: Set[int] = frozenset(),
        kv_bytes_per_token: int = KV_BYTES_PER_TOKEN,
    ) -> None:
        self.config = config
        self.needs_pairs = False
        """no decode worker runs a request alone"""
        self.is_ahead = False
        """a prefill worker's token goes to the client before the prompt is handed over"""
        self._token_bytes = kv_bytes_per_token
        self.aggregated = aggregated
        self.links = LinkEstimate()
        self._prompts_s: dict[object, tuple[float, float]] = {}
        """by worker: seconds of prompts that it was given of late, as of when"""
        self._busy_until: dict[object, float] = {}
        """by worker: the end of these, as it was forecast"""
        self._sent: Counter[int] = Counter()
        """by prefill worker: bytes on their way, or to be computed before"""
        self._landing: Counter[int] = Counter()
        """the same by decode worker"""
        self._on_way: Counter[Landing] = Counter()
        """those that these are the sums of, by `until`"""
        self.decisions: Counter[str] = Counter()
        """by `remote` or `local` and the reason: remote_faster, local_short, ..."""

    def for_pairs_alone(self) -> "PairRule":
        """The same where no worker runs a request alone: every prompt is handed over. What it
        learns and counts is this rule's."""
        other = copy(self)
        other.config, other.needs_pairs = replace(self.config, disagg="always"), True
        return other

    def for_first_ahead(self) -> "PairRule":
        """The same for a request whose first token is the prefill worker's."""
        other = copy(self)
        other.is_ahead = True
        return other

    def handoff_bytes(self, uncached_tokens: int) -> int:
        """KV bytes that go to a decode worker which has the other tokens of a prompt."""
        return max(0, uncached_tokens) * self._token_bytes

    def price(self, worker: object, step_s: float, now: float) -> float:
        """Of a second by which others wait at a worker that decodes in steps of so long."""
        itl_s = step_s / max(LEAST_LEFT, 1 - self._prompts_of(worker, now) / RECENT_S)
        return HARM * (1 + min(itl_s * 1e3 / self.config.disagg_itl_ms, MOST_LATE) ** POWER)

    def _prompts_of(self, worker: object, now: float) -> float:
        """Seconds of prompts, as they were forecast, that a worker was given of late."""
        seconds, at = self._prompts_s.get(worker, (0.0, now))
        return seconds * math.exp((at - now) / RECENT_S)

    def on_local(self, worker: object, prefill_s: float, now: float) -> None:
        """A worker that decodes is given a prompt to compute."""
        if worker not in self._prompts_s and len(self._prompts_s) >= MOST_SHARES:
            oldest = min(self._prompts_s, key=lambda each: self._prompts_s[each][1])
            del self._prompts_s[oldest], self._busy_until[oldest]
        self._prompts_s[worker] = self._prompts_of(worker, now) + prefill_s, now
        self._busy_until[worker] = max(self._busy_until.get(worker, now), now) + prefill_s

    def landing(
        self,
        source: int,
        target: WorkerWithDpRank,
        uncached_tokens: int,
        until: float = math.inf,
    ) -> Landing:
        """A prompt that would be handed over now."""
        size = self.handoff_bytes(uncached_tokens)
        beside = max(self._sent[source], self._landing[target.worker_id])
        return Landing(source, target, size, size + beside, until)

    def handoff_s(self, landing: Landing, computed_at: float) -> float:
        """Seconds from the end of its prefill to its first token: the transfer, and what is left
        by then of prompts that the decode worker computes."""
        left_s = max(0.0, self._busy_until.get(landing.target, -math.inf) - computed_at)
        source, target, _, shared, _ = landing
        return left_s + self.links.seconds(source, target.worker_id, shared)

    def on_remote(
        self,
        source: WorkerWithDpRank,
        target: WorkerWithDpRank,
        uncached_tokens: int,
        until: float,
    ) -> Landing:
        """A prompt will be handed over; `on_landed` must follow, once. If it does not, `expire`
        drops it from `until` on."""
        landing = self.landing(source.worker_id, target, uncached_tokens, until)
        self._on_way[landing] += 1
        self._sent[landing.source] += landing.size
        self._landing[target.worker_id] += landing.size
        return landing

    def on_landed(self, landing: Landing) -> None:
        """It was, or will not be. Nothing if it has expired."""
        left = self._on_way[landing]
        if left > 1:
            self._on_way[landing] = left - 1
        elif left:
            del self._on_way[landing]
        else:
            return
        for sums, worker in ((self._sent, landing.source), (self._landing, landing.target[0])):
            sums[worker] -= landing.size
            if sums[worker] <= 0:
                del sums[worker]

    def expire(self, now: float) -> None:
        """Drop those whose `until` is over without a call of `on_landed`."""
        while self._on_way and (oldest := next(iter(self._on_way))).until <= now:
            self.on_landed(oldest)

    def on_handed_over(self, landing: Landing, took_s: float, now: float) -> None:
        """A hand-off ends now with its first token. One to a worker that computed a prompt
        meanwhile has waited for that, and says nothing of hand-offs."""
        if self._busy_until.get(landing.target, -math.inf) <= now - took_s:
            source, target, _, shared, _ = landing
            self.links.observe(source, target.worker_id, shared, took_s)

    def note(self, verdict: Verdict) -> Verdict:
        """Count a verdict that was carried out."""
        self.decisions[f"{'remote' if verdict.remote else 'local'}_{verdict.reason}"] += 1
        return verdict
