"""Bad settings of the planner, each refused by its name with what is wrong."""

import re
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.planner import Fleet
from dynamo_router.planner.live.config import PlannerConfig
from dynamo_router.process.settings import options_of, resolve

GOOD = {"discovery": "etcd"}


def config(**given: Any) -> PlannerConfig:
    return resolve(PlannerConfig, {**GOOD, **given}, environ={}).config


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"discovery": None}, "discovery: engines are found in a store, not in a list"),
        ({"discovery": "kubernetes"}, "plan_store: kubernetes keeps no decisions and no lock"),
        ({"connector": "ray"}, "connector: 'ray' (flag --connector) is not one of local, virtual"),
        ({"connector": "kubernetes"}, "deployments: kubernetes needs the Deployment of each role"),
        ({"deployments": ("decode=d",)}, "deployments: Deployments are kubernetes' alone"),
        (
            {"connector": "kubernetes", "deployments": ("decode",)},
            "deployments: 'decode' is not ROLE=NAME, with a role of aggregated, prefill, decode",
        ),
        (
            {"connector": "kubernetes", "deployments": ("encode=d",)},
            "deployments: 'encode=d' is not ROLE=NAME",
        ),
        (
            {"connector": "kubernetes", "deployments": ("decode=d", "decode=e")},
            "deployments: decode is there twice",
        ),
        (
            {"connector": "kubernetes", "deployments": ("decode=d",), "roles": "disaggregated"},
            "deployments: no Deployment is named for prefill",
        ),
        (
            {"connector": "metrics", "engine_arguments": "-x"},
            "engine_arguments: engines of our own",
        ),
        ({"engine_arguments": "'"}, "engine_arguments: no arguments: No closing quotation"),
        ({"connector": "virtual", "follow": True}, "follow: only local engines follow keys"),
        ({"routers": ()}, "routers: at least one is needed"),
        ({"routers": ("127.0.0.1:1",)}, "routers: '127.0.0.1:1' is not http://HOST:PORT"),
        ({"routers": ("http://a", "http://a")}, "routers: a router is there twice"),
        ({"namespace": "a.b"}, "namespace: a name has no dot"),
        ({"port": 70000}, "port: must be in 0..65535"),
        ({"start_limit_s": 0.0}, "start_limit_s: 0.0 must be finite and greater than 0"),
        ({"admit_s": -1.0}, "admit_s: -1.0 must be at least 0"),
        ({"engine_speed": float("nan")}, "engine_speed: nan must be finite"),
        ({"engines_min": 9}, "engines_min: 9 engines are more than engines_max, 8"),
        ({"objective_ttft_ms": 0.0}, "objective_ttft_ms: 0.0 must be finite"),
        ({"target": 1.5}, "target: 1.5 must be in 0..1"),
        ({"engine.block_size": 0}, "block_size: must be at least 1"),
    ],
)
def test_a_bad_setting_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        config(**given)


def test_what_there_is_always_to_be() -> None:
    assert config(engines_min=2).least == Fleet(2)
    assert config(roles="disaggregated").least == Fleet(prefill=1, decode=1)
    assert config(roles="both").least == Fleet()


def test_kubernetes_with_a_store_beside_it() -> None:
    made = config(
        discovery="kubernetes", plan_store="nats", connector="kubernetes",
        deployments=("aggregated=engines",),
    )  # fmt: skip
    assert (made.backend, made.decisions_backend) == ("kubernetes", "nats")
    assert made.place.deployment_of == {"aggregated": "engines"}


def test_every_option_has_a_help() -> None:
    assert [spec.key for spec in options_of(PlannerConfig) if not spec.help] == []


def test_the_short_help_has_what_a_plan_is_made_for() -> None:
    shown = {flag for spec in options_of(PlannerConfig) if spec.short for flag in spec.flags}
    assert shown >= {
        *("--objective-ttft-ms", "--objective-itl-ms", "--target"),
        *("--engines-min", "--engines-max", "--start-up-s", "--roles", "--plan-budget-s"),
    }
