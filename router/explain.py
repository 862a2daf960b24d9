"""Why a decision comes out as it does: the cost that decides, for every worker, and its terms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceState, SourceStatus
from ..workers.registry import WorkerEntry, WorkerState
from .admission import LoadLimits, Objectives
from .affinity import BoundWorker
from .candidates import CandidateSource
from .config import KvRouterConfig
from .policy import (
    Blocks,
    Candidates,
    CandidateTerms,
    CostInputs,
    CostParams,
    Explanation,
    Floats,
    GuardedPolicy,
    Policy,
    discounted,
    terms,
)
from .prompt import Prompt
from .steps import STEP, Steps, by_steps


def explain(
    source: CandidateSource,
    policy: Policy,
    prompt: Prompt,
    config: KvRouterConfig,
    now: float,
    limits: LoadLimits,
    asked: Objectives,
    bound: BoundWorker | None = None,
) -> Steps[Explanation]:
    """What `choose` would compare for this prompt now, and what Dynamo's cost is made of, in steps.

    `limits` say which workers have all they can take, and which are left alone while there are
    others. `asked` are the request's objectives, `bound` is the worker that its session wants.
    Books nothing.
    """
    known = source.candidates(prompt, config, now, with_caches=True)
    seen = known  # by the policy
    if not policy.needs_overlaps:
        seen = source.candidates(prompt, config, now, with_caches=False)
    full: dict[int, str] = {}
    ruled_out = {"busy": limits.busy()} if limits.any_busy else {}
    ruled_out |= limits.why_avoided(source.registry.eligible(now))
    for reason, mask in ruled_out.items():
        full.update(dict.fromkeys(np.flatnonzero(seen.eligible & mask).tolist(), reason))
        known.eligible = seen.eligible = seen.eligible & ~mask
    if bound is not None and (own_number := source.registry.find(bound.worker)) is not None:
        if bound.pinned is not None:
            others = seen.eligible.copy()
            others[own_number] = False
            full.update(dict.fromkeys(np.flatnonzero(others).tolist(), "its session has a worker"))
            known.eligible = seen.eligible = seen.eligible & ~others
    numbered = source.registry.numbered()
    costs = _costs(policy, seen, [number for number, _ in numbered])
    preferred = None if bound is None else source.preferred(bound.preferred, config)
    if preferred is not None:
        costs = discounted(preferred, costs)
    own = policy.explain(seen)
    # What overlaps are read into serves the next prompt too.
    inputs = CostInputs(
        prompt.isl,
        prompt.block_size,
        _copied(known.overlaps),
        known.prefill_tokens,
        known.potential_blocks,
        known.active_requests,
        known.eligible.copy(),
        _copied(known.host_overlaps),
        _copied(known.disk_overlaps),
    )
    summary = Explanation(
        mode=config.mode,
        policy=policy.name if isinstance(policy, GuardedPolicy) else config.policy_name,
        isl=prompt.isl,
        block_size=prompt.block_size,
        request_blocks=prompt.blocks,
        temperature=config.router_temperature,
        params=dict(vars(config.cost_params)),
        residuals=policy.residuals(),
        objectives=limits.objectives(prompt.isl, asked).to_dict(),
        session=None if bound is None else {**bound.worker._asdict(), "mode": bound.mode},
    )
    entries = {entry.worker_id: entry for entry in source.registry.entries()}
    params, steps = config.cost_params, source.index.sources_in_steps()
    sources: Iterable[Sequence[SourceStatus]] = steps
    if not isinstance(source.index, EventIndex):  # it has no lock of its own, and one step
        sources = chain([next(steps, ())], steps)
    return _explanation(summary, numbered, entries, sources, params, inputs, costs, own, full)


def _explanation(
    summary: Explanation,
    ranks: list[tuple[int, WorkerWithDpRank]],
    entries: Mapping[int, WorkerEntry],
    sources: Iterable[Sequence[SourceStatus]],
    params: CostParams,
    inputs: CostInputs,
    compared: Floats,
    own: Mapping[int, Mapping[str, float]],
    full: Mapping[int, str],
) -> Steps[Explanation]:
    """`summary` with a row for each rank. `own` are the policy's terms; `full` says which ranks
    take no more, and why."""
    states: dict[WorkerWithDpRank, str] = {}
    costs = compared.tolist()
    for statuses in sources:
        states.update((each.worker, each.state.value) for each in statuses)
        yield
    rows: list[CandidateTerms] = []
    silent = SourceState.SILENT.value
    for chunk in by_steps(ranks, 2 * STEP):
        rows += (
            row._replace(cost=costs[row.number], policy_terms=own.get(row.number))
            for row in terms(
                params,
                chunk,
                inputs,
                reasons={n: full.get(n) or _reason(entries[w.worker_id]) for n, w in chunk},
                index_states={n: states.get(worker, silent) for n, worker in chunk},
            )
        )
        yield
    return replace(summary, candidates=tuple(rows))


def _copied(array: Blocks | None) -> Blocks | None:
    return None if array is None else array.copy()


def _costs(policy: Policy, seen: Candidates, numbers: list[int]) -> Floats:
    """The policy's costs; of those that are not eligible what they would be if all were."""
    eligible = seen.eligible
    costs = policy.score(seen)
    everywhere = np.zeros_like(eligible)
    everywhere[numbers] = True
    if (everywhere & ~eligible).any():
        seen.eligible = everywhere
        costs = np.where(eligible, costs, policy.score(seen))
        seen.eligible = eligible
    return costs


def _reason(entry: WorkerEntry) -> str:
    """Why the registry does not count a worker as eligible, for when it does not."""
    state = "inhibited" if entry.state is WorkerState.READY else entry.state.value
    return entry.reason or state
