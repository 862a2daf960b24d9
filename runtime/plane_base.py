"""What all event planes share: their state, their counters, and keeping callers' faults out."""

from collections.abc import Callable

from structlog import get_logger

from .event_plane import Handler, PlaneState, PlaneStats, StateCallback

log = get_logger(__name__)


class PlaneBase:
    """State, counters and callbacks of an EventPlane."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._stats = PlaneStats()
        self._callbacks: list[StateCallback] = []

    @property
    def state(self) -> PlaneState:
        return self._state

    @property
    def stats(self) -> PlaneStats:
        return self._stats

    def on_state(self, callback: StateCallback) -> Callable[[], None]:
        self._callbacks.append(callback)

        def take_off() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return take_off

    def _set_state(self, state: PlaneState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is PlaneState.CONNECTED:
            self._stats.connects += 1
        for callback in self._callbacks.copy():
            try:
                callback(state)
            except Exception:
                self._stats.handler_errors += 1
                log.exception("a state callback of the event plane failed", state=state.value)

    def _deliver(self, handler: Handler, subject: str, payload: bytes) -> None:
        """One message to one handler; whatever it raises ends here."""
        self._stats.received += 1
        try:
            handler(subject, payload)
        except Exception:
            self._stats.handler_errors += 1
            # The traceback of the first failure says it all; a storm of them says nothing more.
            if self._stats.handler_errors == 1:
                log.exception("an event handler failed", subject=subject)
            else:
                log.warning("an event handler failed", subject=subject)
