"""An event plane inside one process: for embedding, simulations and tests."""

from collections import deque
from collections.abc import Callable

from .event_plane import Handler, PlaneBase, PlaneState, check_subject, subject_matches


class LocalPlane(PlaneBase):
    """Delivers within `publish`, in the order of subscription. Always connected until closed."""

    def __init__(self) -> None:
        super().__init__(PlaneState.CONNECTED)
        self._stats.connects = 1
        self._subscriptions: dict[LocalSubscription, list[str]] = {}
        self._groups: dict[tuple[str, str], deque[LocalSubscription]] = {}

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
        for (pattern_text, _), members in list(self._groups.items()):
            if members and subject_matches(pattern_text.split("."), segments):
                members.rotate(-1)  # each in turn
                self._deliver(members[-1].handler, subject, payload)

    async def subscribe(self, subject: str, handler: Handler) -> "LocalSubscription":
        pattern = check_subject(subject, wildcards=True)
        if self._state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        subscription = LocalSubscription(subject, handler, self._remove)
        self._subscriptions[subscription] = pattern
        return subscription

    async def subscribe_group(
        self, subject: str, group: str, handler: Handler
    ) -> "LocalSubscription":
        """As `subscribe`, but of those that subscribe as the same group one gets each message."""
        check_subject(subject, wildcards=True)
        if self._state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        members = self._groups.setdefault((subject, group), deque())
        subscription = LocalSubscription(subject, handler, self._remove)
        members.append(subscription)
        return subscription

    async def flush(self) -> bool:
        return self._state is PlaneState.CONNECTED

    async def close(self) -> None:
        self._subscriptions.clear()
        self._groups.clear()
        self._set_state(PlaneState.CLOSED)

    def _remove(self, subscription: "LocalSubscription") -> None:
        self._subscriptions.pop(subscription, None)
        for key, members in list(self._groups.items()):
            if subscription in members:
                members.remove(subscription)
                if not members:
                    del self._groups[key]


class LocalSubscription:
    """A handler on a LocalPlane."""

    def __init__(
        self, subject: str, handler: Handler, remove: Callable[["LocalSubscription"], None]
    ) -> None:
        self.subject = subject
        self.handler = handler
        self._remove = remove

    async def close(self) -> None:
        self._remove(self)
