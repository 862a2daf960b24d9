"""Why a decision comes out as it does: the cost that decides, for every worker, and its terms."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..indexer.source import SourceState
from ..workers.registry import WorkerState
from .candidates import CandidateSource
from .config import KvRouterConfig
from .policy import Candidates, Explanation, Floats, GuardedPolicy, Mask, Policy, terms
from .prompt import Prompt


def explain(
    source: CandidateSource,
    policy: Policy,
    prompt: Prompt,
    config: KvRouterConfig,
    now: float,
    busy: Mask | None,
    avoided: Mapping[str, Mask],
) -> Explanation:
    """What `choose` would compare for this prompt now, and what Dynamo's cost is made of.

    `busy` are the workers that have all they can take, None for none; `avoided` those that are left
    alone while there are others, by the reason for that. Books nothing.
    """
    known = source.candidates(prompt, config, now, with_caches=True)
    seen = known  # by the policy
    if not policy.needs_overlaps:
        seen = source.candidates(prompt, config, now, with_caches=False)
    reasons = _reasons(source)
    ruled_out = {"busy": busy} if busy is not None else {}
    for reason, mask in (ruled_out | dict(avoided)).items():
        reasons.update(dict.fromkeys(np.flatnonzero(seen.eligible & mask).tolist(), reason))
        known.eligible = seen.eligible = seen.eligible & ~mask
    costs = _costs(source, policy, seen)
    own = policy.explain(seen)
    numbered = source.registry.numbered()
    states = {each.worker: each.state.value for each in source.index.sources()}
    rows = terms(
        config.cost_params(),
        numbered,
        isl=prompt.isl,
        block_size=prompt.block_size,
        overlaps=known.overlaps,
        host_overlaps=known.host_overlaps,
        disk_overlaps=known.disk_overlaps,
        prefill_tokens=known.prefill_tokens,
        potential_blocks=known.potential_blocks,
        active_requests=known.active_requests,
        eligible=known.eligible,
        reasons=reasons,
        index_states={n: states.get(w, SourceState.SILENT.value) for n, w in numbered},
    )
    return Explanation(
        mode=config.mode,
        policy=policy.name if isinstance(policy, GuardedPolicy) else config.policy_name,
        isl=prompt.isl,
        block_size=prompt.block_size,
        request_blocks=prompt.blocks,
        temperature=config.router_temperature,
        params=vars(config.cost_params()),
        candidates=tuple(
            replace(row, cost=float(costs[row.number]), policy_terms=own.get(row.number))
            for row in rows
        ),
    )


def _costs(source: CandidateSource, policy: Policy, seen: Candidates) -> Floats:
    """The policy's costs; of those that are not eligible what they would be if all were."""
    eligible = seen.eligible
    costs = policy.score(seen)
    everybody = np.zeros_like(eligible)
    everybody[[number for number, _ in source.registry.numbered()]] = True
    if (everybody & ~eligible).any():
        seen.eligible = everybody
        costs = np.where(eligible, costs, policy.score(seen))
        seen.eligible = eligible
    return costs


def _reasons(source: CandidateSource) -> dict[int, str]:
    """Why the registry does not count a worker as eligible, by number, for when it does not."""
    reasons = {}
    for entry in source.registry.entries():
        state = "inhibited" if entry.state is WorkerState.READY else entry.state.value
        reasons.update(dict.fromkeys(entry.numbers, entry.reason or state))
    return reasons
