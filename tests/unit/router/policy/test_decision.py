"""Decisions and explanations say all they know, in JSON too."""

import json
import math

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.policy.decision import CandidateTerms, Decision, Explanation


def candidate(worker_id, cost, eligible=True, policy_terms=None):
    return CandidateTerms(
        worker=WorkerWithDpRank(worker_id, 1),
        number=worker_id % 8,
        eligible=eligible,
        reason="" if eligible else "draining",
        overlap_blocks=3,
        host_overlap_blocks=2,
        disk_overlap_blocks=1,
        raw_prefill_blocks=10.0,
        credit=1.0,
        effective_overlap_blocks=3.0,
        decode_blocks=4.0,
        active_requests=2,
        cost=cost,
        dynamo_cost=7.5,
        index_state="exact",
        policy_terms=policy_terms,
    )


def explanation(*candidates):
    return Explanation(
        mode="kv",
        isl=160,
        block_size=16,
        request_blocks=10,
        temperature=0.0,
        params={"prefill_load_scale": 1.0},
        candidates=candidates,
    )


def test_a_decision_as_json():
    worker = WorkerWithDpRank(2**63 + 1, 2)
    decision = Decision(worker, 5, 3, 10, 48, "r1", 2, 1)
    assert json.loads(json.dumps(decision.to_dict())) == {
        "worker_id": 2**63 + 1,
        "dp_rank": 2,
        "number": 5,
        "overlap_blocks": 3,
        "request_blocks": 10,
        "cached_tokens": 48,
        "request_id": "r1",
        "host_overlap_blocks": 2,
        "disk_overlap_blocks": 1,
    }


def test_the_cheapest_are_the_eligible_workers_that_tie():
    found = explanation(candidate(1, 11.0), candidate(2, 9.0, False), candidate(3, 11.0))
    assert found.cheapest == ((1, 1), (3, 1))
    assert explanation(candidate(2, 9.0, False)).cheapest == ()
    assert explanation().cheapest == ()


def test_a_worker_that_is_ruled_out_is_never_the_cheapest_and_costs_null():
    out = candidate(1, math.inf, policy_terms={"cost": math.inf, "wait_s": 2.0})
    assert explanation(out).cheapest == ()
    told = json.loads(json.dumps(out.to_dict(), allow_nan=False))
    assert told["cost"] is None and told["policy_terms"] == {"cost": None, "wait_s": 2.0}


def test_an_explanation_as_json():
    found = json.loads(json.dumps(explanation(candidate(1, 11.0), candidate(2, 9.5)).to_dict()))
    assert found["cheapest"] == [{"worker_id": 2, "dp_rank": 1}]
    assert found["params"] == {"prefill_load_scale": 1.0}
    assert found["candidates"][0] == {
        "worker_id": 1,
        "dp_rank": 1,
        "number": 1,
        "eligible": True,
        "reason": "",
        "overlap_blocks": 3,
        "host_overlap_blocks": 2,
        "disk_overlap_blocks": 1,
        "raw_prefill_blocks": 10.0,
        "credit": 1.0,
        "effective_overlap_blocks": 3.0,
        "decode_blocks": 4.0,
        "active_requests": 2,
        "cost": 11.0,
        "dynamo_cost": 7.5,
        "index_state": "exact",
        "policy_terms": None,
    }
