"""The place of a process among several, and the settings that come with it."""

from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.config import ModelFrontendConfig, ServeFrontendConfig
from dynamo_router.process.settings import SettingsSource
from dynamo_router.server.fronts import FrontPlace, PlacedSettings
from dynamo_router.workers.records import DiscoveryConfig

SETTINGS = {
    "port": 8100,
    "http_frontend": 8200,
    "router.router_replica_sync": True,
    "router_id": "r-1",
}


def test_a_place_is_taken_from_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = FrontPlace(1, 2, "/folder", SETTINGS, ["grpc://127.0.0.1:1"])
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    assert FrontPlace.take() == place
    assert FrontPlace.take() is None


def test_its_settings_hold_over_those_of_the_command() -> None:
    config = ServeFrontendConfig(workers=("grpc://127.0.0.1:2",))
    place = FrontPlace(1, 2, "/folder", SETTINGS, ["grpc://127.0.0.1:1"])
    placed = place.applied_to(config)
    assert (placed.port, placed.frontend.http_frontend, placed.router_id) == (8100, 8200, "r-1")
    assert placed.router.router_replica_sync
    assert placed.workers == ("grpc://127.0.0.1:2", "grpc://127.0.0.1:1")
    assert place.socket_of(0) == "/folder/front-0.sock"


def test_so_they_do_when_settings_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_attempts = 2\nport = 1\n")
    source = SettingsSource(ServeFrontendConfig, {}, str(file))
    placed = PlacedSettings(source, FrontPlace(0, 2, "/folder", SETTINGS))
    assert (placed.current.config.max_attempts, placed.current.config.port) == (2, 8100)
    assert placed.current.values["port"] == 1, "what was written, for what has changed"
    file.write_text("max_attempts = 3\nport = 1\n")
    again = placed.read()
    assert (again.config.max_attempts, again.config.port) == (3, 8100)
    file.write_text("max_attempts = 0\n")
    with pytest.raises(ConfigError):
        placed.read()


def test_the_frontend_of_models_takes_one_too() -> None:
    config = ModelFrontendConfig(discovery=DiscoveryConfig(discovery="file"))
    settings = {"http_port": 8300, "router.router_replica_sync": True, "nats": "nats://h:1"}
    placed = FrontPlace(0, 2, "/folder", settings).applied_to(config)
    assert placed.frontend.http_frontend == 8300 and placed.nats == "nats://h:1"
    assert placed.router.router_replica_sync
