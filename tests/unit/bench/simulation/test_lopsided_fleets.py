"""Too few prefill or too few decode workers: neither waits for what the other cannot do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.bench.simulation import Load, RoleConfig, SimulationConfig, compare_policies
from dynamo_router.bench.simulation import handoffs as simulated
from dynamo_router.router.disagg import DisaggConfig

PROMPT, ANSWER = 4096, 60


def trace(tmp_path: Path, requests: int, every_ms: int) -> str:
    """Prompts that have nothing in common."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp": {i * every_ms}, "input_length": {PROMPT}, "output_length": {ANSWER},'
            f' "hash_ids": {list(range(i * 8, i * 8 + 8))}}}\n'
            for i in range(requests)
        )
    )
    return str(path)


def run_of(path: str, mode: str, prefill: int, decode: int, **more: Any) -> Any:
    roles = RoleConfig(prefill_workers=prefill, decode_workers=decode)
    config = SimulationConfig(roles=roles, disagg=DisaggConfig(disagg=mode), **more)
    return compare_policies(config, Load(trace=path), workers=0, names="kv")[0]


def test_one_prefill_worker_for_five_gets_what_it_does_sooner_than_they(tmp_path: Path) -> None:
    """The decode workers compute the others: three times what it could."""
    path = trace(tmp_path, 240, 30)
    off, always, conditional = (
        run_of(path, mode, 1, 5) for mode in ("off", "always", "conditional")
    )
    assert always.ttft_ms.p90 > 5 * off.ttft_ms.p90, "it alone is too few"
    assert 0.05 < conditional.remote_prefill_share < 0.6
    # An engine less computes whole requests; nothing waits longer for the prefill worker.
    assert conditional.ttft_ms.p90 < 1.5 * off.ttft_ms.p90


@pytest.mark.parametrize("mode", ["always", "conditional"])
def test_no_prefill_of_five_begins_that_one_decode_worker_has_no_room_for(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So none holds its blocks until there is."""
    made = []
    begun = simulated.Handoffs.__init__

    def kept(self: Any, *args: Any) -> None:
        begun(self, *args)
        made.append(self)

    monkeypatch.setattr(simulated.Handoffs, "__init__", kept)
    path = trace(tmp_path, 120, 15)
    run = run_of(path, mode, 5, 1, num_gpu_blocks=2048, block_size=16)
    (handoffs,) = made
    assert run.errors == run.rejected == 0 and handoffs.remote.sum() > 20
    assert run.queued or run.ttft_ms.p99 > 1000, "there was room for few at a time"
    waited_s = (handoffs.begun_s - handoffs.prefilled_s)[handoffs.remote]
    assert np.nanmax(waited_s) < 0.3, "a step of the decode worker, and no answer's end"
    assert run.preemptions == 0
