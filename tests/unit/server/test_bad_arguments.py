"""A number that is no use, or an address that is none, is one line before anything is opened."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.simulate import SimulateConfig
from dynamo_router.engines.adapters.config import EngineWorkerConfig, TrtllmConfig, VllmConfig
from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.frontend.config import ModelFrontendConfig, ServeFrontendConfig
from dynamo_router.process.settings import OptionSpec, options_of, resolve
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.config import ServeConfig
from dynamo_router.workers.worker_url import parse_worker

NUMBERS = ("0", "-1", str(2**31), str(10**12), str(2**63), str(2**64), "1e30", "nan", "inf")
COMMANDS = (
    ServeConfig,
    ServeFrontendConfig,
    ModelFrontendConfig,
    SimulateConfig,
    EngineConfig,
    MockerConfig,
    TrtllmConfig,
    VllmConfig,
)


def numeric(command: type) -> list[OptionSpec]:
    return [spec for spec in options_of(command) if spec.kind in (int, float)]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_number_is_taken_or_refused_in_one_line_that_names_its_setting(
    command: type, number: str
) -> None:
    needed = {"model": "m"} if issubclass(command, EngineWorkerConfig) else {}
    for spec in numeric(command):
        try:
            found: Any = resolve(command, {**needed, spec.key: number}, environ={})
        except ConfigError as error:
            assert "\n" not in str(error) and str(error), spec.key
            continue
        assert spec.kind is float or 0 <= abs(int(number)) <= spec.most, spec.key
        if spec.key.startswith("router."):
            try_router(found.config.router)


@cache  # commands share the router's settings
def try_router(config: KvRouterConfig) -> None:
    """A router of these settings can be made and asked, or says why it cannot."""
    try:
        with KvRouter(config) as router:
            router.add_worker(1)
            router.best_worker(np.arange(100), "request")
    except RouterError:
        pass


@pytest.mark.parametrize("url", ["foo://x", "nats://127.0.0.1:42\n22", "nats://127.0.0.1:99999"])
@pytest.mark.parametrize("command", [MockerConfig, TrtllmConfig, VllmConfig])
def test_an_engine_checks_the_address_of_nats_with_its_settings(command: type, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(command, {"nats": url}, environ={})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        {"workers": ("foo",)},
        {"workers": ("grpc://127.0.0.1:1", "grpc://127.0.0.1:99999")},
        {"nats": "foo://x"},
        {"nats": "nats://127.0.0.1:42\n22"},
        {"nats": "nats://127.0.0.1:4222 "},
    ],
)
def test_addresses_are_checked_with_the_settings(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeConfig(**setting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("control", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\u2028", "\x85", " "])
@pytest.mark.parametrize(
    "url",
    [
        "grpc://127.0.0.1:80{}01",
        "grpc://{}127.0.0.1:8001",
        "openai+http://h:1?id={}3",
        "grpc+dns://na{}me:8001",
        "127.0.0.1:8001{}",
    ],
)
def test_no_control_character_is_passed_over_in_a_workers_address(url: str, control: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_worker(url.format(control))
    assert control == " " or control not in str(caught.value)
