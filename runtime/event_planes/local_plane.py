"""An event plane inside one process: for embedding, simulations and tests."""

from collections.abc import Callable

from .event_plane import Handler, PlaneBase, PlaneState, check_subject, subject_matches


class LocalPlane(PlaneBase):
    """Delivers within `publish`, in the order of subscription. Always connected until closed."""

    def __init__(self) -> None:
        super().__init__(PlaneState.CONNECTED)
        self._stats.connects = 1
        self._subscriptions: dict[LocalSubscription, list[str]] = {}

    async def publish(self, subject: str, payload: bytes) -> None:
        segments = check_subject(subject, wildcards=False)
        if self._state is PlaneState.CLOSED:
            self._stats.publish_dropped += 1
            return
        self._stats.published += 1
        # A handler may subscribe or close subscriptions, also those still to be served here.
        for subscription, pattern in list(self._subscriptions.items()):
            if subscription in self._subscriptions and subject_matches(pattern, segments):
                self._deliver(subscription.handler, subject, payload)

    async def subscribe(self, subject: str, handler: Handler) -> "LocalSubscription":
        pattern = check_subject(subject, wildcards=True)
        if self._state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        subscription = LocalSubscription(subject, handler, self._remove)
        self._subscriptions[subscription] = pattern
        return subscription

    async def flush(self) -> bool:
        return self._state is PlaneState.CONNECTED

    async def close(self) -> None:
        self._subscriptions.clear()
        self._set_state(PlaneState.CLOSED)

    def _remove(self, subscription: "LocalSubscription") -> None:
        self._subscriptions.pop(subscription, None)


class LocalSubscription:
    """A handler on a LocalPlane."""

    def __init__(
        self, subject: str, handler: Handler, remove: Callable[["LocalSubscription"], None]
    ) -> None:
        self._subject = subject
        self.handler = handler
        self._remove = remove

    @property
    def subject(self) -> str:
        return self._subject

    async def close(self) -> None:
        self._remove(self)
