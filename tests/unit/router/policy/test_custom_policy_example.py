"""The example of a policy does what it says, passed in and by name."""

import importlib.util
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
from support.places import ROOT

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.router import policies

EXAMPLE = ROOT / "examples" / "custom_policy.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("custom_policy", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_stays_with_a_prefix_until_that_worker_is_too_busy(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main()
    workers = [line.split("worker ")[1][0] for line in capsys.readouterr().out.splitlines()]
    assert len(workers) == 5
    assert workers[:3] == [workers[0]] * 3 and workers[3] != workers[0]


def test_it_decides_under_its_name(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    point = EntryPoint("sticky", "custom_policy:sticky", policies.GROUP)
    monkeypatch.setattr(policies, "offered", lambda: [point])
    config = KvRouterConfig(block_size=16, use_kv_events=False, policy="sticky", seed=1)
    with KvRouter(config) as router:
        router.add_worker(1)
        router.add_worker(2)
        first = router.best_worker(list(range(64)), "a")
        assert router.best_worker(list(range(64)), "b") == (first[0], 0, 4)
        assert router.policy_failures == 0
