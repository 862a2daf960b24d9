"""Prefill and decode engines apart, in virtual time: the legs of requests and what moves between.

A prefill engine makes one token and keeps the prompt's blocks until they are read. Its request then
goes to the decode engine, which keeps blocks free for the prompt before the transfer begins. Who
gets which leg is decided by KvRouter.place_pair. What keeps a prompt is taken to be renewed while
its reader waits, as engines do: none is given up.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import RouterError
from ...engines.mocker import Emitted, Handoff, VirtualFleet
from ...process.setting_checks import require_at_least, require_finite, require_positive
from ...process.settings import bad_setting, option
from ...router.disagg import DisaggConfig, Landing, PairRule
from ...router.kv_router import KvRouter
from ...router.placement import Placement
from ...router.policy import Decision
from .prepared_trace import SimulatedTrace

FIRST_TOKENS = ("decode", "prefill")


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """Engines with a role. Raises ConfigError, naming the key, on a bad value."""

    prefill_workers: int = option(0, "Engines that compute prompts for decode workers.")
    decode_workers: int = option(
        0, "Engines that decode what prefill workers computed; --workers are then those beside."
    )
    transfer_gbps: float = option(
        25.0, "Gigabytes a second of an engine's network card, each way, shared by transfers."
    )
    transfer_latency_ms: float = option(
        2.0, "From the end of a prefill until its request is at the decode worker."
    )
    first_token: str = option(
        "decode",
        "Whose first token goes to the client: that of the decode engine, which makes it itself"
        " (vLLM), or that of the prefill engine, which the decode engine goes on from"
        " (TensorRT-LLM).",
        choices=FIRST_TOKENS,
    )

    def __post_init__(self) -> None:
        require_at_least(self, 0, "prefill_workers", "decode_workers")
        require_positive(self, "transfer_gbps")
        require_finite(self, 0, "transfer_latency_ms")
        if bool(self.prefill_workers) != bool(self.decode_workers):
            key = "decode_workers" if self.prefill_workers else "prefill_workers"
            raise bad_setting(key, "prefill and decode workers need each other: give both")
        if self.first_token not in FIRST_TOKENS:
            text = f"{self.first_token!r} is not one of {', '.join(FIRST_TOKENS)}"
            raise bad_setting("first_token", text)

    @property
    def engines(self) -> int:
        return self.prefill_workers + self.decode_workers


class TransferNetwork:
    """Transfers between engines. Each has a network card of a fixed number of bytes a second each
    way.

    A transfer gets the smaller of its even shares at both ends. Time only moves on.
    """

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._now = 0.0
        self._left: dict[int, float] = {}
        self._ends: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def start(self, key: int, source: int, target: int, size: float, now: float) -> None:
        """A transfer begins."""
        self._pass(now)
        self._left[key], self._ends[key] = size, (source, target)

    @property
    def next_time(self) -> float:
        """When the next one ends, if none begins before; inf without any."""
        rates = self._rates()
        ends = (self._left[key] / rate for key, rate in rates.items())
        return self._now + min(ends, default=math.inf)

    def finish(self, now: float) -> list[int]:
        """Those that have ended by then, which is not after the first of them."""
        rates = self._rates()
        done = [
            key for key, rate in rates.items() if self._now + self._left[key] / rate <= now + 1e-12
        ]
        self._pass(now)
        for key in done:
            del self._left[key], self._ends[key]
        return done

    def _pass(self, now: float) -> None:
        passed = max(0.0, now - self._now)
        for key, rate in self._rates().items():
            self._left[key] = max(0.0, self._left[key] - rate * passed)
        self._now = max(self._now, now)

    def _rates(self) -> dict[int, float]:
        out: dict[int, int] = {}
        into: dict[int, int] = {}
        for source, target in self._ends.values():
            out[source] = out.get(source, 0) + 1
            into[target] = into.get(target, 0) + 1
        return {
            key: self._bandwidth / max(out[source], into[target])
            for key, (source, target) in self._ends.items()
        }


class _Legs(NamedTuple):
    source: int
    target: int
    landing: Landing


class Handoffs:
    """The requests of a run whose prompts are computed elsewhere; its prefill router."""

    def __init__(
        self,
        config: RoleConfig,
        disagg: DisaggConfig,
        prefill: KvRouter,
        decode: KvRouter,
        fleet: VirtualFleet,
        trace: SimulatedTrace,
        aggregated: frozenset[int],
    ) -> None:
        self.prefill = prefill
        token_bytes = fleet.config.tiers.kv_bytes_per_token
        self.rule = PairRule(disagg, aggregated=aggregated, kv_bytes_per_token=token_bytes)
        self.is_ahead = self.rule.is_ahead = config.first_token == "prefill"
        self.blocked: deque[int] = deque()  # while no decode worker has capacity, in their order
        self._decode, self._fleet, self._trace = decode, fleet, trace
        self._network = TransferNetwork(config.transfer_gbps * 1e9)
        self._latency_s = config.transfer_latency_ms / 1e3
        self._computing: dict[int, _Legs] = {}
        self._legs: dict[int, _Legs] = {}  # from the end of the prefill to the first token
        self._dispatches: list[tuple[float, int]] = []
        size = len(trace)
        self.remote = np.zeros(size, np.bool_)
        self.prefilled_s: NDArray[np.float64] = np.full(size, np.nan)
        self.begun_s: NDArray[np.float64] = np.full(size, np.nan)
        self.transfer_s: NDArray[np.float64] = np.full(size, np.nan)
        self.handoff_s: NDArray[np.float64] = np.full(size, np.nan)
        self.cached: NDArray[np.int64] = np.zeros(size, np.int64)

    def __repr__(self) -> str:
        return (
            f"<{len(self._computing)} prefills, {len(self._dispatches)} dispatches, "
            f"{len(self._network)} transfers, {len(self._legs)} without a first token, "
            f"{len(self.blocked)} blocked>"
        )

    @property
    def is_moving(self) -> bool:
        """Whether a request or a prompt is under way between engines."""
        return bool(self._dispatches or len(self._network))

    @property
    def next_time(self) -> float:
        """When `act` is next due."""
        dispatch = self._dispatches[0][0] if self._dispatches else math.inf
        return min(dispatch, self._network.next_time)

    def begin(self, placement: Placement, place: int, now: float) -> Decision | None:
        """The decision for a request that one engine runs; None: its prefill was begun."""
        pair = self._decode.place_pair(placement, self.prefill, self.rule)
        if pair.prefill is None:
            return pair.decode
        assert pair.landing is not None
        source, target = pair.prefill.worker.worker_id, pair.decode.worker.worker_id
        try:
            self._fleet.check_lengths(
                self._trace.requests[place].input_length, self._trace.output_tokens(place)
            )
            if self._is_whole(place):
                self._submit(place, source, now, 1, Handoff.NONE, self._delay_after(place))
            else:
                self._submit(place, source, now, 1, Handoff.HANDS_OVER, None)
        except RouterError:
            self.rule.on_landed(pair.landing)
            raise
        self._computing[place] = _Legs(source, target, pair.landing)
        self.remote[place] = True
        return None

    def _is_whole(self, place: int) -> bool:
        """Whether the prefill engine's token, the client's first, is the whole answer."""
        return self.is_ahead and self._trace.output_tokens(place) == 1

    def _delay_after(self, place: int) -> float | None:
        """Seconds from its end to its session's next turn."""
        return self._trace.followers[place][1] if place in self._trace.followers else None

    def target_of(self, place: int) -> int:
        return self._computing[place].target

    def on_answer(self, place: int, kind: int, cached_tokens: int, time: float) -> bool:
        """An engine's answer; False if it is one that the client gets."""
        if kind & Emitted.WAITS:
            legs = self._legs[place]
            tokens = self._trace.requests[place].input_length - cached_tokens
            self.begun_s[place] = time
            self._network.start(
                place, legs.source, legs.target, self.rule.handoff_bytes(tokens), time
            )
            return True
        if place in self._computing:
            legs = self._computing.pop(place)
            self.prefill.mark_prefill_complete(str(place), cached_tokens=cached_tokens)
            self.cached[place], self.prefilled_s[place] = cached_tokens, time
            if self._is_whole(place):
                self.prefill.free(str(place), output_tokens=1)
                self.rule.on_landed(legs.landing)
                return False
            self._legs[place] = legs
            heapq.heappush(self._dispatches, (time + self._latency_s, place))
            return True
        if kind & Emitted.FIRST and place in self._legs:
            legs = self._legs.pop(place)
            took = self.handoff_s[place] = time - self.prefilled_s[place]
            self.rule.on_landed(legs.landing)
            self.rule.on_handed_over(legs.landing, float(took), time)
        return False

    def first_ahead(
        self, first_s: NDArray[np.float64], gaps: tuple[NDArray[np.float64], NDArray[np.uint32]]
    ) -> tuple[NDArray[np.float64], tuple[NDArray[np.float64], NDArray[np.uint32]]]:
        """Times of first tokens and gaps between tokens, of a log in which the decode engines' are,
        where the prefill engines' tokens are the clients' first: a hand-off is a gap."""
        took_s = self.handoff_s[np.isfinite(self.handoff_s)]
        return np.where(self.remote, self.prefilled_s, first_s), (
            np.concatenate([gaps[0], took_s]),
            np.concatenate([gaps[1], np.ones(len(took_s), np.uint32)]),
        )

    def act(self, now: float) -> None:
        """Send on what is due: requests to decode workers, prompts that have come."""
        while self._dispatches and self._dispatches[0][0] <= now:
            place = heapq.heappop(self._dispatches)[1]
            # What goes on from a first token makes one less.
            output = self._trace.output_tokens(place) - self.is_ahead
            self._submit(
                place,
                self._legs[place].target,
                now,
                output,
                Handoff.HANDED_OVER,
                self._delay_after(place),
            )
        for place in self._network.finish(now):
            legs = self._legs[place]
            self.transfer_s[place] = now - self.begun_s[place]
            self._fleet.settle_handoff(legs.target, place, Handoff.ARRIVING, now)
            self._fleet.settle_handoff(legs.source, place, Handoff.HANDS_OVER, now)
            self.prefill.free(str(place), output_tokens=1)

    def _submit(
        self,
        place: int,
        worker: int,
        now: float,
        output: int,
        handoff: Handoff,
        after: float | None,
    ) -> None:
        local, sequence = self._trace.hashes(place)
        self._fleet.submit(
            worker,
            place,
            prompt_tokens=self._trace.requests[place].input_length,
            output_tokens=output,
            local_hashes=local,
            sequence_hashes=sequence,
            now=now,
            followed_after_s=after,
            handoff=handoff,
        )
