"""The demo's words, and the router it starts: what it says when that does not come up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.demo import DemoConfig, run, verdict
from dynamo_router.bench.load.serve_process import ServeProcess
from dynamo_router.bench.results.report import Run, Summary

ROUND_ROBIN = Run(
    mode="round-robin",
    policy="round-robin",
    workers=4,
    seed=0,
    requests=100,
    errors=0,
    rejected=0,
    cached_token_share=0.35,
    ttft_ms=Summary(200.0, 150.0, 300.0, 900.0),
    itl_ms=Summary(10.0, 10.0, 10.0, 10.0),
    e2e_ms=Summary(500.0, 500.0, 500.0, 500.0),
    output_tokens_per_s=1000.0,
    balance_max_over_mean=1.0,
    wall_s=10.0,
)
KV = replace(
    ROUND_ROBIN, mode="kv", cached_token_share=0.7, ttft_ms=Summary(80.0, 60.0, 100.0, 400.0)
)


def test_the_verdict_says_what_was_gained() -> None:
    assert verdict([ROUND_ROBIN, KV]) == (
        "kv took 70% of all prompt tokens from the engines' caches, round-robin 35%; the first "
        "token came after 80 ms instead of 200 ms, 2.5 times sooner."
    )


def test_the_verdict_does_not_hide_a_loss() -> None:
    said = verdict([KV, ROUND_ROBIN])
    assert "round-robin took 35%" in said and "2.5 times LATER" in said


@pytest.mark.parametrize("lost", [{"errors": 3}, {"rejected": 3}])
def test_no_verdict_where_requests_failed(lost: dict[str, int]) -> None:
    said = verdict([ROUND_ROBIN, replace(KV, **lost)])
    assert said == "kv failed 3 of 100 requests: no comparison."


def test_the_verdict_on_a_single_run() -> None:
    assert verdict([KV]) == "kv: 100 requests, all answered."


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("modes", ()),
        ("workers", 0),
        ("block_size", 0),
        ("num_gpu_blocks", -1),
        ("arrival_speedup", 0.0),
        ("requests", 0),
        ("start_timeout_s", 0.0),
        ("picture", "stations.svg"),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        DemoConfig(**{key: value})
    assert caught.value.key == key


def test_an_unwritable_result_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        run(DemoConfig(json=str(tmp_path / "none" / "out.json")))


async def test_a_router_that_does_not_start_is_quoted() -> None:
    with pytest.raises(RouterError, match="ended before it was ready:\n") as caught:
        async with ServeProcess(["--no-such-flag"], workers=1, start_timeout_s=30):
            pytest.fail("it cannot be ready")
    assert "--no-such-flag" in str(caught.value)
