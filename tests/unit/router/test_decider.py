"""Placements in, decisions out: at once by a KvRouter, in their turn by a Decider."""

import asyncio

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import AdmissionConfig, Urgency
from dynamo_router.router.affinity import AffinityConfig, Session
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.decider import Decider
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Placement

BLOCK = 16
ONE_EACH = AdmissionConfig(max_requests_per_worker="1", hold=False, queue_limit=2)


def router_of(
    workers: int = 1, admission: AdmissionConfig | None = None, **affinity: object
) -> KvRouter:
    config = KvRouterConfig(
        block_size=BLOCK,
        seed=1,
        use_kv_events=False,
        admission=admission or AdmissionConfig(hold=False),
        affinity=AffinityConfig(**affinity),  # type: ignore[arg-type]
    )
    router = KvRouter(config, clock=ManualClock())
    for worker_id in range(1, workers + 1):
        router.add_worker(worker_id)
    return router


def placement(router: KvRouter, request_id: str, **more: object) -> Placement:
    return Placement(router.prompt(range(2 * BLOCK)), request_id, **more)  # type: ignore[arg-type]


def test_a_placement_does_not_change() -> None:
    with router_of() as router:
        placed = placement(router, "r")
        with pytest.raises(AttributeError):
            placed.request_id = "other"  # type: ignore[misc]


def test_a_router_places_and_books() -> None:
    with router_of(2) as router:
        decision = router.place(placement(router, "r", pinned=WorkerWithDpRank(2)))
        assert (decision.worker.worker_id, decision.request_id) == (2, "r")
        assert router.requests_of(2) == 1
        with pytest.raises(InvalidRequestError):
            router.place(placement(router, "r"))
        with pytest.raises(NoWorkersError):
            router.place(placement(router, "other", excluded=frozenset((1, 2))))
        assert router.free("r") and router.requests_of(2) == 0


def test_a_session_is_bound_where_its_request_went_and_left_where_that_may_not_go() -> None:
    with router_of(3, session_affinity_ttl_secs=60.0, session_affinity_mode="hard") as router:
        session = Session("s")
        first = router.place(placement(router, "a", session=session)).worker.worker_id
        for name in "bc":
            assert router.place(placement(router, name, session=session)).worker.worker_id == first
        other = first % 3 + 1
        pinned = placement(router, "d", session=session, pinned=WorkerWithDpRank(other))
        assert router.place(pinned).worker.worker_id == other
        away = placement(router, "e", session=session, excluded=frozenset((other,)))
        assert router.place(away).worker.worker_id != other


def test_a_placement_without_an_id_is_not_booked_and_one_of_an_account_is_its() -> None:
    with router_of(2) as router:
        assert router.place(placement(router, "")).request_id is None
        router.place(placement(router, "r", owner="a"))
        assert router.requests_of(1) + router.requests_of(2) == 1 and router.slots.has_owned


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_session_goes_only_to_a_worker_that_the_placement_allows(mode: str) -> None:
    with router_of(3, session_affinity_ttl_secs=60.0, session_affinity_mode=mode) as router:
        session = Session("s")
        first = router.place(placement(router, "a", session=session)).worker.worker_id
        others = tuple({1, 2, 3} - {first})
        elsewhere = placement(router, "b", session=session, allowed=others)
        assert (second := router.place(elsewhere).worker.worker_id) in others
        with pytest.raises(NoWorkersError):
            router.place(placement(router, "c", session=session, allowed=(9,)))
        again = placement(router, "c", session=session, allowed=(first, second))
        if mode == "hard":
            assert router.place(again).worker.worker_id == second


def test_a_session_of_a_selection_ends_with_its_last_decision() -> None:
    with router_of(2, session_affinity_ttl_secs=60.0) as router:
        last = Session("s", final=True)
        router.place(placement(router, "a", session=last, in_flight=False))
        assert len(router.sessions) == 0
        router.place(placement(router, "b", session=last))
        assert len(router.sessions) == 1


async def test_without_limits_no_request_waits() -> None:
    with router_of() as router:
        seen: list[str] = []
        decider = Decider(router, before_decision=lambda each: seen.append(each.request_id))
        assert decider.queue is None and decider.is_open(placement(router, "r"))
        assert (await decider.place(placement(router, "r"))).request_id == "r"
        assert seen == ["r"] and router.requests_of(1) == 1
        assert not decider.give_up("r", RuntimeError())
        with pytest.raises(ValueError, match="queue"):
            decider.turn(placement(router, "r"))


async def test_requests_wait_for_their_turn_the_urgent_first() -> None:
    with router_of(admission=ONE_EACH) as router:
        decider, went = Decider(router), list[str]()

        async def run(placed: Placement) -> None:
            went.append((await decider.place(placed)).request_id or "")

        await run(placement(router, "first"))
        later = asyncio.create_task(run(placement(router, "later")))
        await asyncio.sleep(0)
        urgent = asyncio.create_task(run(placement(router, "urgent", urgency=Urgency(1))))
        await asyncio.sleep(0)
        queue = decider.queue
        assert queue is not None and len(queue) == 2
        with pytest.raises(NoWorkersError):
            await decider.place(placement(router, "one too many"))
        for name, task in (("first", urgent), ("urgent", later)):
            router.free(name)
            decider.poll()
            await task
        assert went == ["first", "urgent", "later"] and not len(queue)
        router.free("later")


async def test_who_waits_is_told_and_can_be_given_up() -> None:
    with router_of(admission=ONE_EACH) as router:
        decider, waits = Decider(router), list[str]()
        decider.decide(placement(router, "first"))

        async def wait() -> None:
            async with decider.turn(placement(router, "r"), lambda: waits.append("r")):
                raise AssertionError("it was given up")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert waits == ["r"]
        assert decider.give_up("r", NoWorkersError("enough")) and not decider.give_up(
            "s", OSError()
        )
        with pytest.raises(NoWorkersError, match="enough"):
            await task
        assert decider.queue is not None and not len(decider.queue)


def test_a_request_that_was_with_a_worker_does_not_wait() -> None:
    with router_of(admission=ONE_EACH) as router:
        decider = Decider(router)
        decider.decide(placement(router, "first"))
        assert not decider.is_open(placement(router, "new"))
        assert decider.is_open(placement(router, "again", retried=True))


def test_other_settings_reach_the_queue() -> None:
    with router_of(admission=ONE_EACH) as router:
        decider = Decider(router)
        fewer = AdmissionConfig(max_requests_per_worker="1", hold=False, queue_limit=1)
        decider.change(KvRouterConfig(block_size=BLOCK, use_kv_events=False, admission=fewer))
        assert decider.queue is not None and decider.queue.limit == 1
        assert router.limits.config.queue_limit == 1


async def test_nobody_waits_while_a_worker_elsewhere_may_take_a_part() -> None:
    with router_of(1, AdmissionConfig(hold=False, queue_threshold=0.001)) as router:
        router.add_worker(1, max_num_batched_tokens=1000)
        decider, elsewhere_s = Decider(router), 0.5
        decider.elsewhere.append(lambda: elsewhere_s)
        decider.decide(placement(router, "a"))
        assert not decider.is_open(placement(router, "b"))
        assert decider.queue is not None and decider.queue.ask_again_s == 0.5
        elsewhere_s = 0.0
        assert decider.is_open(placement(router, "b"))
        pinned = placement(router, "b", pinned=WorkerWithDpRank(1))
        assert not decider.is_open(pinned), "it may go to that worker alone"
        turn = decider.turn(placement(router, "b"))
        async with asyncio.timeout(5.0), turn:
            pass


def test_a_cap_on_requests_holds_for_those_that_others_take_a_part_of() -> None:
    with router_of(1, ONE_EACH) as router:
        decider = Decider(router)
        decider.elsewhere.append(lambda: 0.0)
        decider.decide(placement(router, "a"))
        assert not decider.is_open(placement(router, "b"))
