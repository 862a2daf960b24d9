"""Refusals at a fleet's capacity: a peak is no flood."""

from dataclasses import replace
from pathlib import Path

from dynamo_router.bench.evaluation.splits import split_of
from dynamo_router.bench.simulation import Experiment, Load, SimulationConfig
from dynamo_router.bench.traces import encode_request
from dynamo_router.bench.traffic import TRAFFIC_BLOCK_SIZE, generate_traffic

CAPACITY = 40.0
"""Requests a second of which 96 % are good without refusals."""


def test_at_its_capacity_a_fleet_refuses_hardly_anybody(tmp_path: Path) -> None:
    """Deterministic: virtual time."""
    split = split_of("train")
    fleet, seed = split.fleets[0], split.seeds[0]
    spec = split.traffic["drifting-tenants"]
    made = generate_traffic(spec, 600, rate=CAPACITY, seed=seed, first_id=split.first_id)
    path = tmp_path / "capacity.jsonl"
    path.write_bytes(b"".join(map(encode_request, made)))
    simulation = SimulationConfig(
        block_size=TRAFFIC_BLOCK_SIZE, num_gpu_blocks=fleet.num_gpu_blocks
    )
    load = Load(trace=str(path), trace_block_size=TRAFFIC_BLOCK_SIZE, seed=seed)
    experiment = Experiment(simulation, load, fleet.workers)
    base = simulation.router()
    admission = replace(base.admission, slo_ttft_ms=1000.0, slo_itl_ms=50.0)
    (variant,) = experiment.variants("forecast", replace(base, admission=admission))
    run = experiment.run(variant, seed).run
    assert run.rejected < 30 and (run.goodput.absolute or 0.0) > 0.93
