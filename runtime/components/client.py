"""A caller of one endpoint: knows its instances and spreads requests over them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, get_args
from uuid import uuid4

from ...base.clock import Clock, SystemClock
from ...base.errors import ConfigError, NoWorkersError
from ..discovery import PrefixWatcher, full_key_string
from ..kv_stores import LEASE_TTL_S, KeyValueStore
from ..request_planes import RequestClient, RequestError
from .answers import NOTHING, data_of
from .instance_selector import InstanceChooser, InstanceSelector, Mode, TurnSelector
from .instances import INSTANCES, SERVICES, EndpointName, Instance, decode_instance

LINGER_S = 2 * LEASE_TTL_S
"""How long an instance whose key is gone may be asked, if there is no other."""
Answer: TypeAlias = AsyncGenerator[Any, None]


class Client:
    """Follows an endpoint's instances from `start` to `close`, or has a fixed list of them."""

    def __init__(
        self,
        name: EndpointName,
        plane: RequestClient,
        store: KeyValueStore | None,
        static: Sequence[Instance] = (),
        *,
        selector: InstanceSelector | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without a store the instances are `static`; without a selector there is no mode kv."""
        self.name = name
        self._plane = plane
        self._clock = clock or SystemClock()
        self._chooser = InstanceChooser()
        self._selector = selector
        self._turns = {
            mode: TurnSelector(self._chooser, mode, self._clock) for mode in get_args(Mode)
        }
        self._static = {instance.instance_id: instance for instance in static}
        self._watchers: list[PrefixWatcher[str, Instance]] = []
        self._known: dict[str, Instance] = {}
        self._departed: dict[int, tuple[Instance, float]] = {}
        """instances whose keys went, and when"""
        if store is not None:
            # Of the seed's keys some end in `{endpoint}-{id}`: what is not ours is left out below.
            prefixes = {INSTANCES: name.prefix, SERVICES: name.prefix[:-1]}
            for bucket, prefix in prefixes.items():
                self._watchers.append(_watcher(store, bucket, prefix))
                self._watchers[-1].listeners.append(self._on_change)

    @property
    def instances(self) -> Mapping[int, Instance]:
        """Those that may be called, by their ids."""
        found = dict(self._static)
        for watcher in reversed(self._watchers):  # where there are two, that of today counts
            for instance in watcher.values.values():
                if instance.name == self.name and instance.transport in self._plane.transports:
                    found[instance.instance_id] = instance
        return found

    async def start(self) -> None:
        """Returns once the instances that are there are known."""
        for watcher in self._watchers:
            await watcher.start()

    async def close(self) -> None:
        for watcher in self._watchers:
            await watcher.close()

    def random(self, body: object, **more: Any) -> Answer:
        """The answer of any instance. NoWorkersError if there is none, else as `direct`."""
        return self._spread(self._turns["random"], body, **more)

    def round_robin(self, body: object, **more: Any) -> Answer:
        """The answer of the next instance in turn, else as `random`."""
        return self._spread(self._turns["round_robin"], body, **more)

    def kv(self, body: object, **more: Any) -> Answer:
        """The answer of the instance that the client's selector chooses, else as `random`.

        ConfigError without one, InvalidRequestError for a body that it cannot choose by.
        """
        if self._selector is None:
            raise ConfigError("mode kv needs a client with a selector", key="selector")
        return self._spread(self._selector, body, **more)

    async def direct(self, body: object, instance_id: int, **more: Any) -> Answer:
        """The parts of that instance's answer. RequestError if it fails; `more` is `request_id`
        and `metadata`. Closing the generator cancels the request."""
        instance = self.instances.get(instance_id)
        if instance is None:
            raise NoWorkersError(f"{self.name} has no instance {instance_id:x}")
        async with aclosing(self._call(instance, body, more)) as parts:
            async for part in parts:
                yield part

    async def _spread(
        self,
        selector: InstanceSelector,
        body: object,
        *,
        request_id: str | None = None,
        **more: Any,
    ) -> Answer:
        """Try instances until one begins to answer."""
        id = request_id or str(uuid4())
        tried: set[int] = set()
        failure: RequestError | None = None
        while True:
            registered = self.instances
            instances = registered or self._lately_departed()
            left = self._chooser.left(instances, self._clock.now(), tried)
            try:
                if not left:
                    raise NoWorkersError(f"no instance serves {self.name}")
                selection = selector.select(id, body, instances.keys(), instances.keys() - left)
            except NoWorkersError:
                if failure is not None:
                    raise failure from None
                raise
            instance = instances[selection.instance_id]
            tried.add(instance.instance_id)
            begun = False
            try:
                answer = self._call(instance, selection.body, {"request_id": id, **more})
                async with aclosing(answer) as parts:
                    async for part in parts:
                        begun = True
                        selector.on_part(id, part)
                        yield part
                return
            except RequestError as error:
                if not begun and not registered and error.fault.down:
                    if not error.fault.not_begun:
                        raise NoWorkersError(f"no instance serves {self.name}") from error
                elif begun or not error.fault.not_begun:
                    raise
                else:
                    failure = error
            finally:
                selector.release(id)

    def _on_change(self, key: str, instance: Instance | None) -> None:
        if instance is not None:
            self._known[key] = instance
            self._departed.pop(instance.instance_id, None)
        elif (gone := self._known.pop(key, None)) is not None:
            now = self._clock.now()
            self._departed = {
                id: known for id, known in self._departed.items() if now < known[1] + LINGER_S
            }
            self._departed[gone.instance_id] = gone, now

    def _lately_departed(self) -> Mapping[int, Instance]:
        """Instances to call while the store lists none: after an outage of the store all leases
        may have ended, and those who live register again. One that is gone does not answer."""
        now = self._clock.now()
        return {
            id: gone
            for id, (gone, when) in self._departed.items()
            if now < when + LINGER_S
            and gone.name == self.name
            and gone.transport in self._plane.transports
        }

    async def _call(self, instance: Instance, body: object, more: dict[str, Any]) -> Answer:
        answer = self._plane.stream(
            instance.address, body, transport=instance.transport, codec=instance.codec, **more
        )
        try:
            async with aclosing(answer) as parts:
                async for part in parts:
                    if (data := data_of(part)) is not NOTHING:
                        yield data
            self._chooser.report_up(instance.instance_id)
        except RequestError as error:
            error.worker_id = instance.instance_id
            if error.fault.down:
                self._chooser.report_down(instance.instance_id, self._clock.now())
            raise


def _watcher(store: KeyValueStore, bucket: str, prefix: str) -> PrefixWatcher[str, Instance]:
    return PrefixWatcher(store.bucket(bucket), full_key_string, decode_instance, prefix=prefix)
