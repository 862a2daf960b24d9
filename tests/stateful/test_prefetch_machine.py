"""PrefetchPlan against the list of everything that was asked, answered and decided."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.policy import Decision
from dynamo_router.server.prefetch.plan import LEAST_BLOCKS, MOST_PENDING, PrefetchPlan

WORKERS = st.builds(WorkerWithDpRank, st.integers(0, 1), st.integers(0, 1))
REQUESTS = st.integers(0, 30).map(str)


@dataclass
class Asked:
    request_id: str
    worker: WorkerWithDpRank
    went_to: WorkerWithDpRank | None = None
    decided: bool = False
    answered: bool = False
    blocks: int = 0

    @property
    def open(self) -> bool:
        return not (self.decided and self.answered)


def decision(worker: WorkerWithDpRank, host: int, disk: int) -> Decision:
    return Decision(
        worker=worker,
        number=0,
        overlap_blocks=3,
        request_blocks=99,
        cached_tokens=0,
        host_overlap_blocks=host,
        disk_overlap_blocks=disk,
    )


class PrefetchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plan = PrefetchPlan()
        self.asked: list[Asked] = []
        self.unable: set[int] = set()

    @rule(
        request_id=REQUESTS, worker=WORKERS, host=st.integers(0, 5), disk=st.integers(0, 5),
        held=st.booleans(),
    )  # fmt: skip
    def decide(self, request_id, worker, host, disk, held):
        waits = any(each.request_id == request_id and not each.decided for each in self.asked)
        if not held:
            self.plan.on_booked(request_id, worker)
            self.settle(request_id, worker)
            waits = False
        pending = [
            each
            for each in self.asked
            if not each.answered and each.worker.worker_id == worker.worker_id
        ]
        known = any(
            (each.request_id, each.worker) == (request_id, worker) and each.open
            for each in self.asked
        )
        wanted = (
            host + disk >= LEAST_BLOCKS
            and worker.worker_id not in self.unable
            and not waits
            and not known
            and len(pending) < MOST_PENDING
        )
        assert self.plan.wants(request_id, decision(worker, host, disk)) == wanted
        if wanted:
            tell = self.plan.on_held if held else self.plan.on_sent
            tell(request_id, worker)
            went_to = None if held else worker
            self.asked.append(Asked(request_id, worker, went_to, decided=not held))

    @rule(request_id=REQUESTS, worker=st.none() | WORKERS)
    def book(self, request_id, worker):
        self.plan.on_booked(request_id, worker)
        self.settle(request_id, worker)

    @precondition(lambda self: any(not each.answered for each in self.asked))
    @rule(data=st.data(), blocks=st.none() | st.integers(0, 9))
    def answer(self, data, blocks):
        question = data.draw(st.sampled_from([each for each in self.asked if not each.answered]))
        self.plan.on_answer(question.request_id, question.worker, blocks)
        question.answered, question.blocks = True, blocks or 0
        if blocks is None:
            self.unable.add(question.worker.worker_id)

    @rule(worker_id=st.integers(0, 1))
    def leave(self, worker_id):
        self.plan.on_worker_gone(worker_id)
        self.unable.discard(worker_id)

    def settle(self, request_id, worker):
        for each in self.asked:
            if each.request_id == request_id and not each.decided:
                each.decided, each.went_to = True, worker

    @invariant()
    def counts(self):
        self.plan.check_integrity()
        counts = self.plan.counts
        assert counts.asked == len(self.asked)
        assert counts.blocks == sum(each.blocks for each in self.asked)
        assert counts.wasted == sum(
            each.blocks for each in self.asked if not each.open and each.went_to != each.worker
        )


TestPrefetch = PrefetchMachine.TestCase
