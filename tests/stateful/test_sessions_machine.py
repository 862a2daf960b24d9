"""Tables of sessions keep their bounds, and tables that hear of each other agree in the end."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.affinity import Session, SessionTable

MOST, TTL_S = 6, 10.0
KEYS = st.integers(0, 8).map("s{}".format)
OWNERS = st.sampled_from(["", "a", "b"])
WORKERS = st.integers(0, 3).map(lambda number: WorkerWithDpRank(number, 0))
SIDES = st.integers(0, 1)


class Tables(RuleBasedStateMachine):
    """Two routers' tables, and a model of each: what was used last, oldest first."""

    @initialize(first=st.integers(1, 1000), second=st.integers(1, 1000))
    def begin(self, first, second):
        self.now = 0.0
        self.tables = [
            SessionTable(TTL_S, MOST, writer, sequence, repeat_s=2.5)
            for writer, sequence in ((11, first), (22, second))
        ]
        self.bound = [{}, {}]  # what each was last told, whatever it forgot
        self.on_its_way = [[], []]  # to that side

    @rule(side=SIDES, key=KEYS, owner=OWNERS, worker=WORKERS, timeout_s=st.sampled_from([3.0, 99]))
    def bind(self, side, key, owner, worker, timeout_s):
        table = self.tables[side]
        before = table.worker_of(key, self.now)
        moved = table.bind(Session(key, owner, timeout_s), worker, self.now)
        assert moved == (before is not None and before != worker)
        assert table.worker_of(key, self.now) == worker
        self.bound[side][key] = worker

    @rule(side=SIDES, key=KEYS)
    def begin_and_end(self, side, key):
        table = self.tables[side]
        before = table.worker_of(key, self.now)
        table.begin(key, self.now)
        self.now += 2 * TTL_S
        assert table.worker_of(key, self.now) == before  # a request in flight keeps it
        table.end(key, self.now)
        assert table.worker_of(key, self.now) == before

    @rule(side=SIDES, key=KEYS, worker=WORKERS, any_worker=st.booleans())
    def unbind(self, side, key, worker, any_worker):
        table = self.tables[side]
        before = table.worker_of(key, self.now)
        table.unbind(key, None if any_worker else worker)
        wanted = None if any_worker or before == worker else before
        assert table.worker_of(key, self.now) == wanted

    @rule(side=SIDES, worker=WORKERS)
    def worker_leaves(self, side, worker):
        self.tables[side].on_worker_gone(worker)
        assert self.tables[side].count_on(worker) == 0

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def time_passes(self, seconds):
        self.now += seconds
        for table in self.tables:
            table.expire(self.now)

    @rule(side=SIDES, lost=st.booleans(), shuffled=st.randoms(use_true_random=False))
    def tell(self, side, lost, shuffled):
        told = self.tables[side].take_unsent(4, self.now)
        if not lost:
            self.on_its_way[1 - side] += told
            shuffled.shuffle(self.on_its_way[1 - side])

    @rule(side=SIDES)
    def hear(self, side):
        for binding in self.on_its_way[side]:
            self.tables[side].merge(binding, self.now)
        self.on_its_way[side] = []

    @rule()
    def agree(self):
        """Each tells all it has, in both directions: who knows a session at all says the same."""
        for _ in range(2):
            for side, table in enumerate(self.tables):
                table.send_all()
                while told := table.take_unsent(MOST, self.now):
                    for binding in told:
                        self.tables[1 - side].merge(binding, self.now)
        one, other = self.tables
        for key in {f"s{number}" for number in range(9)}:
            workers = {one.worker_of(key, self.now), other.worker_of(key, self.now)} - {None}
            assert len(workers) <= 1

    @invariant()
    def whole(self):
        for side, table in enumerate(getattr(self, "tables", [])):
            table.check_integrity()
            assert len(table) <= MOST
            if not self.on_its_way[side]:
                continue
            assert len(self.on_its_way[side]) < 1000


TestTables = Tables.TestCase
