"""What chooses the instance for a request: in turn, at random, or by somebody who knows more."""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, TypeAlias

from ...base.clock import Clock

INHIBITED_S = 5.0
"""How long an instance that failed is passed over, if there are others."""
Mode: TypeAlias = Literal["random", "round_robin"]


class InstanceChooser:
    """Remembers whose turn it is, and who failed lately. Times are of a monotonic clock."""

    def __init__(self, inhibited_s: float = INHIBITED_S, rng: Random | None = None) -> None:
        self._inhibited_s = inhibited_s
        self._rng = rng or Random()
        self._inhibited: dict[int, float] = {}
        self._last = -1

    def choose(
        self, mode: Mode, instances: Collection[int], now: float, tried: Collection[int] = ()
    ) -> int | None:
        """One of `instances` that was not tried; None if all were, or there are none.

        Those that failed lately only if there is no other: the last one is never taken away.
        """
        fit = self.left(instances, now, tried)
        if not fit:
            return None
        if mode == "random":
            return self._rng.choice(fit)
        # The next by id, not by place: the turn goes on as it was when somebody joins or leaves.
        self._last = next((id for id in fit if id > self._last), fit[0])
        return self._last

    def left(
        self, instances: Collection[int], now: float, tried: Collection[int] = ()
    ) -> list[int]:
        """Those that may be chosen, in order: not tried, and not failed lately if there are any."""
        left = sorted(id for id in instances if id not in tried)
        return [id for id in left if now >= self._inhibited.get(id, now)] or left

    def report_down(self, instance: int, now: float) -> None:
        """Pass it over for a while: it could not be reached, or broke off."""
        self._inhibited = {id: end for id, end in self._inhibited.items() if end > now}
        self._inhibited[instance] = now + self._inhibited_s

    def report_up(self, instance: int) -> None:
        """It has answered: no reason to pass it over."""
        self._inhibited.pop(instance, None)


@dataclass(frozen=True, slots=True)
class Selection:
    """An instance, and what it is to be asked."""

    instance_id: int
    body: object


class InstanceSelector(Protocol):
    """Injected into a Client for its mode `kv`. Each `select` is followed by one `release`."""

    def select(
        self,
        request_id: str,
        body: object,
        instances: Collection[int],
        excluded: Collection[int],
    ) -> Selection:
        """One of `instances`, who are all there are now, that is not `excluded`.

        The request counts as its load until `release`. NoWorkersError if none can take it,
        InvalidRequestError for a body that says nothing to choose by; nothing is counted then.
        """
        ...

    def on_part(self, request_id: str, part: object) -> None:
        """A part of the answer came."""
        ...

    def release(self, request_id: str) -> None:
        """The request ended on the instance that was selected last, however it did."""
        ...


class TurnSelector:
    """The modes that look at no request: in turn, or at random."""

    def __init__(self, chooser: InstanceChooser, mode: Mode, clock: Clock) -> None:
        self._chooser, self._clock = chooser, clock
        self._mode: Mode = mode

    def select(
        self,
        request_id: str,
        body: object,
        instances: Collection[int],
        excluded: Collection[int],
    ) -> Selection:
        chosen = self._chooser.choose(self._mode, instances, self._clock.now(), excluded)
        assert chosen is not None, "an instance is left"
        return Selection(chosen, body)

    def on_part(self, request_id: str, part: object) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass
