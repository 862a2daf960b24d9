"""The policy `forecast`: route by what a prompt will cost where, in seconds of waiting.

    cost = ttft * (1 + waiting / usual + prefill / (usual + cold)) + delay + crowding
        + prefill_weight * work + decode_weight * decode + miss_weight * missed
    ttft = waiting + prefill
    waiting = wait + unsure + memory

`wait` works off the prompt tokens sent there before, `prefill` computes this prompt's own that are
not cached; both are steps of a latency model that is learnt from first tokens. `usual` is the mean
TTFT of late, `cold` what the prompt takes on an idle engine with nothing cached. `unsure` is how
much later than forecast an engine that was idle may have begun its step. `work` is what its tokens
take, with as much of empty steps as they fill, in the share that others are there to pay for.
`delay` is what those suffer whose last step this prompt would fill up, `memory` the time until its
blocks have room, `crowding` how much longer those then wait for room who come later, `decode` what
it and the requests decoding there cost each other until those who come next have evened that out,
`missed` how many more of them then miss their ITL objective, which weighs more where engines have
time over. docs/routing.md has the reasons.
"""

import logging
import math
from dataclasses import dataclass, fields

from ...base.errors import ConfigError, NoWorkersError
from ...workers.registry import WorkerEntry
from ._forecast import Forecast
from .base import Candidates, Foreseen, HeardBooking, Policy, ShedBound
from .draw import Rng, no_workers_left
from .dynamo_cost import Blocks, Counts, Floats, Mask
from .modes import LMetric
from .onboarding import Load, Onboarding
from .residuals import ResidualState, ResidualWatch

CONTEXT_TOKENS = 1e5  # the kernel's unit of tokens that decode
CHUNK_TOKENS = 8192  # of prompt tokens
ATTENDED_TOKENS = 8.192e7  # and of prompt tokens times the context they attend to
ORDER_PENALTY = 20.0  # times the seconds that it takes may a prompt wait for shorter ones
MOST_UNSAVED = 2  # blocks' time that a prompt may wait for transfers and still count as computing
MOST_MISSED = 0.7  # objectives that a request may cost where what is too much is shed
MORE_UNMISSED = 6.0  # and more while hardly an answer missed its own of late:
MANY_MISSED = 0.2  # where this share of them did, 1/e of that more
OVER_SHARE = 3.0  # times stricter for a tenant that has more in the engines than its share
FEW_MISSED = 0.05  # share up to which what no engine computes in time is served
LATE_WEIGHT = 4.0  # answers that a request counts as whose first token is foreseen too late
LATE_RECENT = 0.02  # share of the newest request in the share of those
FORGOTTEN_SHARE = 1e-3  # of those that is as good as none
MOST_TENANTS = 1024  # whose share is remembered; beyond, who asked longest ago is forgotten
UNHEARD = 2.0  # usual TTFTs: what waiting for one costs where `ttft` is the usual one
LONGEST = 3.0  # times the usual TTFT: a prompt that computes so long is slow wherever it goes

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ForecastParams:
    """Weights, and what is believed before anything was observed. Nothing here is per fleet.

    Raises ConfigError, naming the key, on a value that is negative or not finite; 0 only for a
    weight.
    """

    prefill_weight: float = 1.5  # of a second of computing that others pay for
    decode_weight: float = 0.6  # of a second that decoding takes longer
    miss_weight: float = 0.2  # seconds that a missed ITL objective counts as, in a busy fleet
    itl_objective_s: float = 0.025  # mean ITL that an answer should have at most
    lead_s: float = 0.1  # seconds of prompts that an engine may have before requests are held
    step_s: float = 0.02  # of a step that computes a prompt
    token_s: float = 2e-5  # more for each prompt token in it
    context_s: float = 1e-7  # and for each token of those that decode meanwhile
    ttft_s: float = 0.3
    output_tokens: float = 256.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0.0 if each.name.endswith("_weight") else math.ulp(0.0)
            if not (math.isfinite(value) and value >= least):
                raise ConfigError(
                    f"forecast: {each.name} {value!r} must be finite and not negative",
                    key=each.name,
                )


@dataclass(frozen=True)
class Learnt:
    """What the model says now. Seconds; `context` is 100 000 tokens of those that decode."""

    step_s: float  # of a step that computes a prompt
    token_s: float  # more for each prompt token in it
    decode_share: float  # more, of a decode step of those beside it
    attended_s: float  # more for each prompt token and token of its context
    decode_step_s: float  # of a step that computes none
    decode_context_s: float  # more for each context
    decode_request_s: float  # more for each request
    ttft_s: float  # recent means
    output_tokens: float
    answer_s: float  # from the first token to the last
    stretch: float  # decode steps' time that a token takes, prompts computed meanwhile included


class ForecastPolicy(Policy):
    """The lowest cost in seconds, by what it has learnt of the engines. Belongs to one router.

    While what it foresees does not come true, a score without a model decides in its place, and
    requests are held for room alone. Not thread-safe: KvRouter has a lock. Knows nothing of a
    request that was not booked.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        params: ForecastParams | None = None,
    ) -> None:
        self.temperature = temperature
        self._forecast = Forecast(params or ForecastParams())
        self._numbers: set[int] = set()
        self._watch = ResidualWatch()
        self._fallback = LMetric()
        self._late_shares: dict[str, float] = {}  # by tenant: see _count_late
        self._onboarding = Onboarding()
        self._loads: dict[str, Load] = {}  # of requests that find blocks in lower tiers
        self._loaded: dict[str, tuple[int, int]] = {}  # what their engines reported of it

    @property
    def parts(self) -> tuple[Forecast, ResidualWatch]:
        """The kernel, and what says whether it decides: for another kernel."""
        return self._forecast, self._watch

    def score(self, candidates: Candidates) -> Floats:
        """Seconds by worker number, inf where it is not eligible; or the fallback's costs."""
        if not self._watch.trusted:
            return self._fallback.score(candidates)
        costs = self._forecast.score(
            candidates.isl,
            candidates.block_size,
            self._saved(candidates),
            candidates.potential_blocks,
            candidates.active_blocks,
            candidates.eligible,
            candidates.now,
        )
        if candidates.unheard is not None:
            costs += self._unheard_s() * candidates.unheard
        return costs

    def choose(self, candidates: Candidates, rng: Rng) -> int:
        """See Policy. NoWorkersError for a request that is beyond its bound wherever it went: its
        first token foreseen later, or about as many answers missing their ITL objective as it
        adds, itself included."""
        bound, trusted = candidates.bound, self._watch.trusted
        if self.temperature or bound is not None or not trusted:
            costs = self.score(candidates)
            if bound is not None and trusted:
                self._shed(bound)
            return self.pick(costs, rng)
        forecast, unheard = self._forecast, candidates.unheard
        number = forecast.choose(
            candidates.isl,
            candidates.block_size,
            self._saved(candidates),
            candidates.slots.native,
            candidates.sequence_hashes,
            candidates.eligible,
            unheard,
            0.0 if unheard is None else self._unheard_s(),
            candidates.now,
            rng.random(),
        )
        if number < 0:
            raise no_workers_left()
        candidates.chosen = number, forecast.chosen_blocks
        return number

    def _shed(self, bound: ShedBound) -> None:
        """Refuse the request that was scored last, if it is beyond its bound. One that is late even
        on an idle engine only where others miss their objectives for want of what it would take."""
        late = self._forecast.least_ttft > max(0.0, bound.ttft_s)  # an idle worker takes any
        if bound.is_possible:
            self._count_late(bound.tenant, late)
        elif late:
            late = self._missed_share(bound) > FEW_MISSED
        if late or self._forecast.least_missed > self._most_missed(bound):
            self.refused += 1
            what = (
                "it would miss its TTFT objective" if late else "answers would miss theirs of ITL"
            )
            text = f"wherever the request went, {what}"
            raise NoWorkersError(text, overloaded=True, retry_after_s=self._excess_s(bound, late))

    def _count_late(self, tenant: str, late: bool) -> None:
        """Note whether a request was foreseen after its TTFT objective wherever it went. By tenant:
        who comes again at once, as often as it is refused, says nothing of the others."""
        share = self._late_shares.pop(tenant, 0.0)
        share += LATE_RECENT * (late - share)
        if share > FORGOTTEN_SHARE:
            self._late_shares[tenant] = share  # as the newest
        if len(self._late_shares) > MOST_TENANTS:
            del self._late_shares[next(iter(self._late_shares))]

    def _missed_share(self, bound: ShedBound) -> float:
        """Of late: answers that missed their ITL objective, if it is looked at, and four times the
        share of the tenant's requests whose first token was foreseen too late."""
        slow = self._forecast.late_share if bound.missed_share < math.inf else 0.0
        return slow + LATE_WEIGHT * self._late_shares.get(bound.tenant, 0.0)

    def _most_missed(self, bound: ShedBound) -> float:
        """Objectives that a request may cost. What is foreseen of answers is the engine as it is
        now; where few of them were late in the end it was a peak. Where first tokens are late,
        memory is short, and fewer answers help. A flood has no answer that has ended yet: it is
        seen by its tenant, while others are about."""
        strict = OVER_SHARE if bound.has_more else 1.0
        share = strict * self._missed_share(bound)
        more = MORE_UNMISSED / strict * math.exp(-share / MANY_MISSED)
        return (MOST_MISSED + more) * bound.missed_share

    def _excess_s(self, bound: ShedBound, late: bool) -> float:
        """Seconds until a refused request is within its bound, if no other comes: until prompts
        are computed, or as many answers of a worker as are too many have ended."""
        if late:
            return self._forecast.least_ttft - max(0.0, bound.ttft_s)
        excess = self._forecast.least_missed - self._most_missed(bound)
        requests = max(1.0, len(self._forecast) / max(1, len(self._numbers)))
        return min(1.0, excess / requests) * self.learnt().answer_s

    def explain(self, candidates: Candidates) -> dict[int, dict[str, float]]:
        """The terms of every registered worker's cost, in seconds, by number.

        `onboard_s` is the part of `prefill_s` in which blocks of lower tiers are loaded,
        `unheard_s` what it counts for that other routers may have sent requests there unheard.
        """
        terms = self._terms(candidates)
        _, host, disk = _tiers(candidates)
        for number, row in terms.items():
            row["onboard_s"] = row["unheard_s"] = 0.0
            if candidates.unheard is not None:
                row["unheard_s"] = self._unheard_s() * float(candidates.unheard[number])
                row["cost"] += row["unheard_s"]
            if host is not None and disk is not None:
                each = self._onboarding.block_s(number, self._computing_s(candidates.block_size))
                row["onboard_s"] = float(host[number] * each[0] + disk[number] * each[1])
        return terms

    def _terms(self, candidates: Candidates, *number: int) -> dict[int, dict[str, float]]:
        """What costs are made of: of every worker, or of one."""
        return self._forecast.explain(
            candidates.isl,
            candidates.block_size,
            self._saved(candidates),
            candidates.potential_blocks,
            candidates.active_blocks,
            len(candidates.eligible),
            candidates.now,
            *number,
        )

    def foresee(self, candidates: Candidates, number: int) -> Foreseen | None:
        """See Policy; None while what it foresees does not come true."""
        if not self._watch.trusted:
            return None
        terms = self._terms(candidates, number)[number]
        decoding = float(candidates.active_requests[number])
        prefill, decode, *_ = self._forecast.learnt()
        contexts = float(candidates.active_blocks[number]) * candidates.block_size / CONTEXT_TOKENS
        return Foreseen(
            terms["wait_s"],
            terms["prefill_s"],
            terms["memory_s"],
            terms["prefill_s"] * decoding,
            terms["delay_s"],
            prefill[0],
            decode[0] + decode[1] * contexts + decode[2] * decoding,
        )

    def foreseen_ttft_s(self, request_id: str) -> tuple[float, float] | None:
        """See Policy."""
        return self._forecast.foreseen_s(request_id) if self._watch.trusted else None

    def relief_s(self, eligible: Mask, now: float) -> float | None:
        """See Policy."""
        return self._forecast.seconds_until_relief(eligible, now) if self._watch.trusted else None

    def residuals(self) -> ResidualState:
        """How well it foresees, and whether it decides."""
        return self._watch.state()

    def cold_s(self, isl: int) -> float:
        """Seconds of the fleet's usual engine; by what it began with until prefills were seen."""
        return self._forecast.cold_s(isl)

    def hold(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        """Seconds until one of these workers needs a prompt to go on computing without a pause.

        0: now, also as long as too little was learnt to say how long they compute, or what was
        learnt does not come true. inf: every cache is booked out, also then: in full engines
        requests would queue up in which no prediction can come true any more.
        """
        memory_only = not self._watch.trusted
        until_free = self._forecast.seconds_until_free
        return until_free(eligible, active_blocks, now, memory_only=memory_only)

    def hold_over_share(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        """See Policy: what is left are part of a cache, and no prompts to wait behind."""
        trusted, hold = self._watch.trusted, self._forecast.seconds_until_free
        return hold(eligible, active_blocks, now, True) if trusted else 0.0

    def order_penalty_s(self, uncached_tokens: int) -> float:
        """Seconds by which its turn is later than its arrival: the longer a prompt, the later.

        What it takes: the time in which it computes, and for which its tokens would fill a cache.
        The shortest first keeps the mean low, and none waits for ever. The longest go first: they
        make the 99th percentile, and cost others little while there are other workers to go to.
        """
        if not self._watch.trusted:
            return 0.0
        learnt = self.learnt()
        seconds = learnt.token_s * uncached_tokens
        if seconds > LONGEST * learnt.ttft_s:
            return 0.0
        return ORDER_PENALTY * (seconds + self._forecast.stay_s(uncached_tokens))

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        """A worker came, or its known facts have changed."""
        forecast = self._forecast
        budget, blocks = entry.max_num_batched_tokens, entry.total_kv_blocks
        if number in self._numbers:
            became_known = forecast.describe_worker(number, budget, blocks)
            if became_known and self._watch.has_seen(number):
                self._forget_residuals()
        else:
            forecast.add_worker(number, budget, blocks)
            self._numbers.add(number)

    def on_worker_gone(self, number: int) -> None:
        """A worker left, and its requests with it."""
        self._forecast.remove_worker(number)
        self._numbers.discard(number)
        self._watch.on_worker_gone(number)
        self._onboarding.forget(number)
        for request_id in [key for key, load in self._loads.items() if load.number == number]:
            self._forget_load(request_id)

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        """A request was sent to a worker."""
        isl = candidates.isl
        saved = self._saved(candidates)
        tokens = isl
        if saved is not None:
            tokens = max(1, isl - int(saved[number]) * candidates.block_size)  # at least the last
        blocks = candidates.blocks_with(number)
        size = candidates.block_size
        self._forecast.book(request_id, number, isl, tokens, candidates.now, blocks, size)
        if candidates.host_overlaps is not None:
            load = self._load(number, candidates)
            if load is not None:
                self._loads[request_id], self._loaded[request_id] = load, load.lower

    def on_expected(self, request_id: str, number: int, candidates: Candidates) -> None:
        """A request will decode there whose prompt is computed elsewhere: nothing is to be learnt
        of its first token."""
        self._forecast.expect(request_id, number, candidates.isl, candidates.now)

    def on_heard(self, heard: HeardBooking) -> None:
        """A request of another router was: none of its blocks are taken to be loaded."""
        number, isl = heard.number, heard.isl
        tokens = max(1, isl - heard.cached_tokens)
        blocks, size = heard.blocks(), heard.slots.block_size
        self._forecast.book(heard.request_id, number, isl, tokens, heard.now, blocks, size)

    def on_cached(self, request_id: str, cached_tokens: int) -> None:
        """Its engine found `cached_tokens` of its prompt cached; before its first token it counts.

        It distinguishes a slow engine from one whose cache is not as the index says.
        """
        load = self._loads.get(request_id) if self._loads else None
        if load is not None and cached_tokens > 0:
            loaded = self._loaded[request_id] = load.loaded(cached_tokens)
            cached_tokens = max(1, cached_tokens - load.unsaved_tokens(loaded))
        self._forecast.cached(request_id, min(max(cached_tokens, 0), 2**32 - 1))

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its prompt is computed."""
        load = loaded = None
        if self._loads:
            load, loaded = self._loads.get(request_id), self._loaded.get(request_id)
            self._forget_load(request_id)
        slow = False
        if load is not None and loaded is not None:
            used_s = self._computing_s(load.block_size)
            slow = load.unsaved_tokens(loaded) > MOST_UNSAVED * load.block_size
        found = self._forecast.first_token(request_id, now, slow)
        if found is None:
            return
        worker, foreseen_s, took_s, crowded = found
        late_s = math.nan if crowded else self._forecast.late_s  # crowded: it waited for room
        if load is not None and loaded is not None and not math.isnan(late_s):
            loaded_s = late_s + load.unsaved_tokens(loaded) * used_s / load.block_size
            self._onboarding.learn(load.number, loaded, max(0.0, loaded_s), used_s)
        # When answers end cannot be foreseen, nor when a full cache has room.
        if not crowded and self._watch.on_first_token(worker, foreseen_s, took_s):
            self._say()

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        """It is over, however; `output_tokens` if they were counted."""
        if self._loads:
            self._forget_load(request_id)
        found = self._forecast.end(request_id, now, output_tokens or 0)
        if found is not None and found[1] > 0:
            self._watch.on_answer(found[1], found[2])

    def learnt(self) -> Learnt:
        """What the latency model has come to."""
        prefill, decode, ttft, output, answer, stretch = self._forecast.learnt()
        step, chunk, context, attended = prefill
        tokens = chunk / CHUNK_TOKENS, context, attended / ATTENDED_TOKENS
        return Learnt(step, *tokens, decode[0], decode[1], decode[2], ttft, output, answer, stretch)

    def slowness(self, number: int) -> float:
        """How many times longer this worker takes than the model says."""
        return self._forecast.slowness(number)

    def _forget_residuals(self) -> None:
        """What was predicted without the size of a cache says nothing of what is with it."""
        was_trusted = self._watch.trusted
        self._watch.forget()
        if not was_trusted:
            self._say()

    def _say(self) -> None:
        state = self._watch.state()
        if state.trusted or state.failed is None:
            log.warning("forecast recovered: it decides again")
            return
        failed = state.failed
        what = {"ttft": "TTFTs", "itl": "times a token"}.get(
            failed.kind, f"TTFTs of worker number {failed.worker}"
        )
        log.warning(
            "forecast fails: new prefill tokens times batch size decide in its place; half of its"
            " %s are off by %.0f %% or more, for example took %.4g s, predicted %.4g s;"
            " %d workers fail by themselves",
            what,
            100 * (math.exp(failed.scatter) - 1),
            failed.took_s,
            failed.foreseen_s,
            state.failing_workers,
        )

    def block_s(self, number: int, block_size: int) -> tuple[float, float]:
        """Seconds that this worker takes to load a block from host memory, and from disk."""
        return self._onboarding.block_s(number, self._computing_s(block_size))

    def _unheard_s(self) -> float:
        """What a request ahead counts for of which nothing is known: one usual TTFT of waiting."""
        return UNHEARD * self.learnt().ttft_s

    def _computing_s(self, block_size: int) -> float:
        """Seconds that computing a block takes, by what was learnt; above 0."""
        return max(block_size * self.learnt().token_s, 1e-9)

    def _saved(self, candidates: Candidates) -> Blocks | None:
        """Blocks of prefill that each worker's tiers save, less what loading them takes."""
        if candidates.host_overlaps is None:
            return candidates.saved_prefill_blocks
        device, host, disk = _tiers(candidates)
        if device is None or host is None or disk is None:
            return candidates.saved_prefill_blocks
        computing_s = self._computing_s(candidates.block_size)
        return self._onboarding.saved(device, host, disk, computing_s)

    def _load(self, number: int, candidates: Candidates) -> Load | None:
        """What a request finds by the index in the lower tiers of its worker, if anything."""
        device, host, disk = _tiers(candidates)
        if device is None or host is None or disk is None or not (host[number] or disk[number]):
            return None
        block_size = candidates.block_size
        return Load(
            number,
            int(device[number]),
            (int(host[number]), int(disk[number])),
            block_size,
            self._onboarding.weights(number, self._computing_s(block_size)),
        )

    def _forget_load(self, request_id: str) -> None:
        self._loads.pop(request_id, None)
        self._loaded.pop(request_id, None)

    def check_integrity(self) -> None:
        """Recount everything; AssertionError if a sum is wrong. For tests."""
        self._forecast.check_integrity()


def _tiers(candidates: Candidates) -> tuple[Blocks | None, Blocks | None, Blocks | None]:
    """The overlaps of each tier; None below the device where the weights were set."""
    if candidates.weights_given:
        return candidates.overlaps, None, None
    return candidates.overlaps, candidates.host_overlaps, candidates.disk_overlaps
