"""A session's worker among the others: what it is let off, when it is left, what is told of it."""

import pytest
from support.policy.routers import router_among

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.affinity import AffinityConfig, Session, SessionAffinity
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy import MODES
from dynamo_router.workers.registry import WorkerRegistry, WorkerState

BLOCK = 16
PROMPT = list(range(8 * BLOCK))
SESSION = Session("s")


def router(affinity_mode: str = "soft", **settings: object) -> KvRouter:
    affinity = AffinityConfig(session_affinity_ttl_secs=60.0, session_affinity_mode=affinity_mode)  # type: ignore[arg-type]
    return router_among(
        1, 2, 3, block_size=BLOCK, use_kv_events=False, affinity=affinity, **settings
    )


@pytest.mark.parametrize("mode", sorted(set(MODES) - {"direct"}))
def test_the_preferred_worker_is_taken_where_it_costs_no_more(mode: str) -> None:
    with router(mode=mode) as made:
        for worker_id in (1, 2, 3, 2, 1):
            chosen = made.decide(PROMPT, preferred_worker=worker_id)
            assert chosen.worker.worker_id == worker_id


def test_a_session_does_not_end_while_one_of_its_requests_is_in_flight() -> None:
    """Also if that came before the session was bound, and another one has ended."""
    registry, clock, session = WorkerRegistry(), ManualClock(0.0), Session("s")
    registry.add(1)
    sessions = SessionAffinity(AffinityConfig(session_affinity_ttl_secs=10.0), registry, clock)
    sessions.begin(session)
    sessions.begin(session)
    for _ in range(2):
        sessions.bind(session, WorkerWithDpRank(1))
    sessions.end(session)
    clock.advance(11.0)
    assert sessions.wanted(session) is not None
    sessions.end(session)
    clock.advance(11.0)
    assert sessions.wanted(session) is None
    assert not sessions.table._unbound


def test_it_gives_way_to_one_that_costs_less_than_the_discount_is_worth() -> None:
    with router(policy="dynamo") as made:
        taken = []
        for number in range(12):
            decision = made.decide([number * 1000 + n for n in PROMPT], f"r{number}",
                                   preferred_worker=1)  # fmt: skip
            taken.append(decision.worker.worker_id)
        assert taken[0] == 1 and set(taken) == {1, 2, 3}


def test_it_is_left_while_it_takes_no_requests() -> None:
    with router() as made:
        made.registry.inhibit(1, 5.0)
        assert made.decide(PROMPT, preferred_worker=1).worker.worker_id != 1
        assert made.decide(PROMPT, preferred_worker=99).worker.worker_id in (1, 2, 3)


def test_who_is_wanted() -> None:
    with router("hard") as made:
        sessions, worker = made.sessions, WorkerWithDpRank(2, 0)
        assert sessions.wanted(SESSION) is None
        sessions.bind(SESSION, worker)
        bound = sessions.wanted(SESSION)
        assert bound is not None and (bound.pinned, bound.preferred) == (worker, None)
        assert sessions.wanted(SESSION, excluded={2}) is None
        assert sessions.wanted(None) is None
        made.registry.set_state(2, WorkerState.DRAINING)
        assert sessions.wanted(SESSION) is None
        made.registry.set_state(2, WorkerState.READY)
        assert sessions.wanted(SESSION) == bound
        made.remove_worker(2)
        assert sessions.wanted(SESSION) is None and len(sessions) == 0


def test_without_a_ttl_there_are_no_sessions() -> None:
    with KvRouter(KvRouterConfig(block_size=BLOCK, use_kv_events=False)) as made:
        made.add_worker(1)
        made.sessions.bind(SESSION, WorkerWithDpRank(1, 0))
        assert made.sessions.wanted(SESSION) is None and len(made.sessions) == 0


def test_a_final_request_ends_its_session() -> None:
    with router() as made:
        final, worker = Session("s", final=True), WorkerWithDpRank(1, 0)
        made.sessions.begin(final)
        made.sessions.bind(final, worker)
        assert len(made.sessions) == 1
        made.sessions.end(final)
        assert len(made.sessions) == 0
        made.sessions.bind(final, worker, in_flight=False)
        assert len(made.sessions) == 0


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_the_explanation_shows_it(mode: str) -> None:
    with router(mode, policy="dynamo") as made:
        made.sessions.bind(SESSION, WorkerWithDpRank(2, 0))
        plain = made.explain(PROMPT)
        told = made.explain(PROMPT, bound=made.sessions.wanted(SESSION))
        assert plain.to_dict()["session"] is None
        assert told.to_dict()["session"] == {"worker_id": 2, "dp_rank": 0, "mode": mode}
        assert told.cheapest == (WorkerWithDpRank(2, 0),)
        reasons = {row.worker.worker_id: row.reason for row in told.candidates}
        others = "its session has a worker" if mode == "hard" else ""
        assert reasons == {1: others, 2: "", 3: others}
        ratio = told.candidates[1].cost / plain.candidates[1].cost
        assert ratio == (1.0 if mode == "hard" else 0.5)


def test_the_view_of_a_worker_counts_its_sessions() -> None:
    with router() as made:
        for key in ("a", "b"):
            made.sessions.bind(Session(key), WorkerWithDpRank(3, 0))
        assert [view.sessions for view in made.workers()] == [0, 0, 2]


def test_nothing_is_booked_where_a_session_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    with router() as made:
        placement = Placement(made.prompt(PROMPT), "a", session=SESSION)
        with monkeypatch.context() as patched:
            patched.setattr(SessionAffinity, "bind", fails)
            with pytest.raises(MemoryError):
                made.place(placement)
        assert made.slots.total_requests == 0
        assert made.place(placement).request_id == "a", "its id is free"
