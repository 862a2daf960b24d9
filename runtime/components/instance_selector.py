"""What chooses the instance for a request: in turn, at random, or by somebody who knows more."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ...base.clock import Clock
from .chooser import InstanceChooser, Mode


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
        assert chosen is not None, "somebody is left"
        return Selection(chosen, body)

    def on_part(self, request_id: str, part: object) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass
