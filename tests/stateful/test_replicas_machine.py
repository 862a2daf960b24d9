"""Routers that tell each other their bookings agree in the end, whatever happens to messages.

At every moment what is counted of a router is what it had booked after one of its batches.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo_router.slots.peers import (
    Ask,
    Batch,
    Beat,
    Booked,
    OwnBookings,
    PeerBook,
    decode_message,
    encode_message,
)
from dynamo_router.slots.peers.peer_book import ASK_S, GAP_S, GONE_S

NAMES = st.sampled_from(["a", "a", "b"])  # two routers may have one name
REQUESTS = st.integers(0, 7).map("r{}".format)  # and two requests one id
PLACES = st.integers(0, 3)


class Counted:
    """The load of others by key: what a slot table would have."""

    def __init__(self):
        self.load = {}

    def book(self, key, booking):
        assert key not in self.load
        self.load[key] = (booking.worker_id, booking.hashes, booking.prefilled)

    def complete_prefill(self, key, cached_tokens):
        worker_id, hashes, prefilled = self.load[key]
        assert not prefilled
        self.load[key] = (worker_id, hashes, True)

    def agrees_with(self, peers):
        """Whether the book has what was passed on, by each key."""
        found = {key: peers.booking(key) for key in self.load}
        return self.load == {
            key: (each.worker_id, each.hashes, each.prefilled) for key, each in found.items()
        }

    def release(self, key, output_tokens):
        del self.load[key]

    def gone(self, owner):
        pass


class Router:
    def __init__(self, router_id, name, skew):
        self.own = OwnBookings(router_id, name)
        self.sink = Counted()
        self.peers = PeerBook(router_id, self.sink)
        self.active = {}
        self.history = {0: {}}  # what was booked, by the number of the batch that follows
        self.skew = skew  # seconds that its clock is off
        self.cut = False

    def flush(self):
        batches = self.own.take()
        for batch in batches:
            self.history.pop(batch.sequence + 1, None)
        if self.own.following not in self.history:
            self.history[self.own.following] = dict(self.active)
        return batches

    def counted_of(self, router_id):
        mark = f"{router_id:x}/"
        return {
            key.removeprefix(mark): load
            for key, load in self.sink.load.items()
            if key.startswith(mark)
        }


class ReplicasMachine(RuleBasedStateMachine):
    @initialize(names=st.lists(NAMES, min_size=2, max_size=3))
    def start(self, names):
        self.now = 0.0
        self.ids = 0
        self.routers = []
        self.dead = {}
        self.wire = []  # (from, to, message as bytes)
        for name in names:
            self.join(name, 0.0)

    def join(self, name, skew):
        self.ids += 1
        self.routers.append(Router(self.ids, name, skew))

    def router(self, place):
        return self.routers[place % len(self.routers)]

    def send(self, sender, messages):
        for other in self.routers:
            if other is not sender and not sender.cut:
                self.wire += [(sender, other, encode_message(message)) for message in messages]

    def deliver(self, sender, receiver, data):
        if receiver not in self.routers or receiver.cut:
            return
        now = self.now + receiver.skew
        message = decode_message(data)
        if isinstance(message, Batch):
            receiver.peers.on_batch(message, now)
        elif isinstance(message, Beat):
            receiver.peers.on_beat(message, now)
        elif isinstance(message, Ask):
            if message.wanted in (0, receiver.own.router_id):
                self.send(receiver, [*receiver.flush(), *receiver.own.picture()])
        else:
            receiver.peers.on_picture(message, now)

    def tick(self, router):
        wanted = router.peers.tick(self.now + router.skew)
        self.send(router, [Ask(router.own.router_id, router_id) for router_id in wanted])

    @precondition(lambda self: len(self.routers) < 4)
    @rule(name=NAMES, skew=st.sampled_from([0.0, 60.0, -60.0]))
    def late_joiner(self, name, skew):
        self.join(name, skew)

    @precondition(lambda self: len(self.routers) > 1)
    @rule(place=PLACES, politely=st.booleans())
    def leave(self, place, politely):
        router = self.router(place)
        if politely:
            self.send(router, [router.own.beat(leaving=True)])
        self.routers.remove(router)
        self.dead[router.own.router_id] = router

    @rule(place=PLACES)
    def cut_or_mend(self, place):
        router = self.router(place)
        router.cut = not router.cut

    @rule(
        place=PLACES,
        request_id=REQUESTS,
        worker=st.integers(1, 3),
        blocks=st.integers(0, 3),
        told=st.sampled_from([True, True, False]),
    )
    def use(self, place, request_id, worker, blocks, told):
        """The next thing in the life of a request: booked, first token, perhaps no more, ended."""
        router = self.router(place)
        active = router.active.get(request_id)
        if active is None:
            hashes = bytes(range(8)) * blocks
            router.active[request_id] = (worker, hashes, False)
            router.own.on_booked(Booked(request_id, worker, 0, hashes, 64, 64))
        elif active[2] or blocks == 0:
            del router.active[request_id]
            router.own.on_ended(request_id, 3)
        else:
            router.active[request_id] = (*active[:2], True)
            router.own.on_prefilled(request_id, None)
        if told:
            self.flush(router, beat=False)

    @rule(place=PLACES, request_id=REQUESTS, worker=st.integers(1, 3))
    def try_elsewhere(self, place, request_id, worker):
        router = self.router(place)
        if request_id in router.active:
            router.own.on_ended(request_id, None)
            router.active[request_id] = (worker, b"", False)
            router.own.on_booked(Booked(request_id, worker, 0, b"", 64, 64))
            self.flush(router, beat=False)

    @rule(place=PLACES)
    def beat(self, place):
        self.flush(self.router(place), beat=True)

    def flush(self, router, beat):
        self.send(router, router.flush())
        if beat:
            self.send(router, [router.own.beat()])

    @rule(place=PLACES)
    def plane_away(self, place):
        router = self.router(place)
        pending = router.own.pending
        router.own.drop_pending()
        if pending:
            router.history[router.own.following] = dict(router.active)

    @precondition(lambda self: self.wire)
    @rule(fates=st.lists(st.sampled_from(["deliver", "drop", "twice", "later"]), max_size=6))
    def network(self, fates):
        later = []
        for fate in fates[: len(self.wire)]:
            message = self.wire.pop(0)
            if fate in ("later", "twice"):
                later.append(message)
            if fate in ("deliver", "twice"):
                self.deliver(*message)
        self.wire = later[::-1] + self.wire

    @rule()
    def all_is_delivered(self):
        self.drain()

    @rule(seconds=st.sampled_from([0.01, GAP_S, ASK_S, 1.0, GONE_S]))
    def time_passes(self, seconds):
        self.now += seconds
        for router in self.routers:
            self.tick(router)

    @rule()
    def settle(self):
        """Let all be well for a second: then all agree; and the dead are forgotten in time."""
        for router in self.routers:
            router.cut = False
        self.wire.clear()  # lost, all of it
        for _ in range(5):
            for router in self.routers:
                self.send(router, [*router.flush(), router.own.beat()])
            self.drain()
            self.now += 0.2
            for router in self.routers:
                self.tick(router)
            self.drain()
        for router in self.routers:
            for other in self.routers:
                if other is not router:
                    assert router.counted_of(other.own.router_id) == other.active

    @rule()
    def dead_are_forgotten(self):
        for _ in range(int(GONE_S / 0.25) + 1):
            for router in self.routers:
                self.send(router, [*router.flush(), router.own.beat()])
            self.now += 0.25
            for router in self.routers:
                self.tick(router)
        for router in self.routers:
            for router_id in self.dead:
                if not any(message[0].own.router_id == router_id for message in self.wire):
                    assert not router.counted_of(router_id)

    def drain(self):
        while self.wire:
            self.deliver(*self.wire.pop(0))

    @invariant()
    def each_is_counted_as_it_once_was(self):
        everybody = {router.own.router_id: router for router in self.routers} | self.dead
        for router in self.routers:
            assert not router.counted_of(router.own.router_id)
            for router_id, other in everybody.items():
                if router_id != router.own.router_id:
                    counted = router.counted_of(router_id)
                    if counted:
                        assert counted in other.history.values()
            assert len(router.peers) == len(router.sink.load)
            assert set(router.peers.keys()) == router.sink.load.keys()
            assert router.sink.agrees_with(router.peers)


TestReplicas = ReplicasMachine.TestCase
TestReplicas.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
