"""Placement: what a request asks of the decision where it goes; nothing of how it is carried."""

from collections.abc import Collection, Set
from typing import NamedTuple

import msgspec

from ..base.identity import WorkerWithDpRank
from .admission import NO_OBJECTIVES, NORMAL, Objectives, Urgency
from .affinity import Session, SessionAffinity
from .prompt import Prompt


class Computed(NamedTuple):
    """A worker that has just computed the first blocks of a prompt, whatever its KV events say."""

    worker: WorkerWithDpRank
    blocks: int


class Placement(msgspec.Struct, frozen=True):
    """One request that is to be placed on a worker."""

    prompt: Prompt
    request_id: str = ""
    """it is booked under this id until `KvRouter.free`; empty: it is not booked"""
    arrived: float = 0.0
    """seconds of the router's clock; 0: now"""
    pinned: WorkerWithDpRank | None = None
    """the only worker that it may go to"""
    computed: Computed | None = None
    excluded: Set[int] = frozenset()
    """ids of workers that it may not go to: they cannot take it, or have failed it"""
    retried: bool = False
    """it was with a worker already: it does not wait, and may go to an inhibited worker"""
    session: Session | None = None
    tenant: str = ""
    """between which the router is fair: see TenantConfig"""
    urgency: Urgency = NORMAL
    objectives: Objectives = NO_OBJECTIVES
    expected_output_tokens: int | None = None
    allowed: Collection[int] = ()
    """ids of the workers that it may go to; empty: all"""
    owner: str | None = None
    """the account that the booking is charged to, where its caller may never end it"""
    in_flight: bool = True
    """the end of its session's request is reported to `KvRouter.sessions`"""
    runners_up: int = 0
    """how many other workers the decision is to name, should the chosen one not be reached"""


def wanted_by(
    placement: Placement, sessions: SessionAffinity
) -> tuple[WorkerWithDpRank | None, WorkerWithDpRank | None]:
    """The only worker that a request may go to, and the one that it had better: its session's."""
    session, allowed = placement.session, placement.allowed
    if placement.pinned is not None or session is None:
        return placement.pinned, None
    bound = sessions.wanted(session, placement.excluded)
    if bound is None or (allowed and bound.worker.worker_id not in allowed):
        return None, None
    return bound.pinned, bound.preferred
