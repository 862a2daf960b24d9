"""Settings read again: what may change, what may not, and nothing by halves."""

from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.process.settings import SettingsSource, options_of, resolve
from dynamo_router.server.admin.reload import LIVE, Change, Reloader, changes_of, check_changes
from dynamo_router.server.admin.worker_list import check_worker_lists
from dynamo_router.server.config import ServeConfig


def read(text: str, tmp_path: Path) -> Any:
    path = tmp_path / "router.toml"
    path.write_text(text)
    return resolve(ServeConfig, {}, environ={}, file=path)


def test_a_difference_is_shown_without_secrets_and_of_a_list_only_what_differs(
    tmp_path: Path,
) -> None:
    old = read('nats = "nats://ann:secret@h:1"\nworkers = ["grpc://a:1", "grpc://b:1"]\n', tmp_path)
    new = read('nats = "nats://ann:other@i:1"\nworkers = ["grpc://a:1", "c:1"]\n', tmp_path)
    assert changes_of(old, new) == [
        Change("workers", ("grpc://b:1",), ("c:1",)),
        Change("nats", "nats://ann:***@h:1", "nats://ann:***@i:1"),
    ]
    assert changes_of(old, old) == []


def check(old: Any, new: Any, *, queues: bool = True) -> None:
    check_changes(changes_of(old, new), old.config, new.config, queues=queues)


def test_every_setting_is_either_live_or_refused_by_name(tmp_path: Path) -> None:
    known = {spec.key for spec in options_of(ServeConfig)}
    assert known >= LIVE
    assert {"host", "port", "nats", "router.mode", "router.block_size", "tls.cert"} <= known - LIVE
    old = read("", tmp_path)
    check(old, read("lame_duck_s = 0.5\n[limits]\nqueue_timeout_s = 1\n", tmp_path))
    with pytest.raises(ConfigError, match=r"without a restart: port, router\.seed$") as caught:
        check(old, read("lame_duck_s = 0.5\nport = 1\n[router]\nseed = 1\n", tmp_path))
    assert caught.value.key == "port"


def test_a_queue_that_is_not_there_cannot_be_had(tmp_path: Path) -> None:
    old, new = read("", tmp_path), read("[router.admission]\nqueue_threshold = 2\n", tmp_path)
    check(old, new)
    with pytest.raises(ConfigError, match=r"admission\.queue_threshold: no request could wait"):
        check(old, new, queues=False)


def test_weights_of_a_policy_may_change_but_not_the_policy(tmp_path: Path) -> None:
    plain = read("", tmp_path)
    one = read("[router]\noverlap_score_credit = 0.5\n", tmp_path)
    two = read("[router]\noverlap_score_credit = 0.5\nprefill_load_scale = 4\n", tmp_path)
    check(one, two)
    check(plain, read("[router]\nrouter_temperature = 0.5\n", tmp_path))
    said = r"router\.overlap_score_credit: the policy would be dynamo:1 in place of forecast"
    with pytest.raises(ConfigError, match=said):
        check(plain, one)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (("a:1", "grpc://a:1"), "workers: a:1 is there twice: give each address once"),
        (("a:1?id=2",), "a:1 cannot become another worker"),
        (("grpcs://a:1",), "a:1 cannot become another worker"),
        (("http://a:1",), "is not grpc://HOST:PORT"),
    ],
)
def test_lists_of_workers_are_checked_before_anything_changes(
    new: tuple[str, ...], said: str
) -> None:
    check_worker_lists(("a:1", "b:1"), ("a:1?weight=0.5", "c:1"))
    with pytest.raises(ConfigError, match=said) as caught:
        check_worker_lists(("a:1",), new)
    assert caught.value.key == "workers"


def test_whatever_is_wrong_nothing_is_applied_and_the_next_one_counts_from_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "router.toml"
    path.write_text("lame_duck_s = 1\n")
    applied: list[tuple[float, frozenset[str]]] = []
    source = SettingsSource(ServeConfig, {"max_attempts": 2}, str(path))
    reloader = Reloader(
        source,
        check=lambda changes, old, new: check_changes(changes, old, new, queues=True),
        apply=lambda new, keys: applied.append((new.lame_duck_s, keys)),
    )
    for bad, said in (
        ("lame_duck_s = \n", "is not TOML"),
        ("lame_duck_s = 2\nnonsense = 1\n", "nonsense: unknown key"),
        ("lame_duck_s = -1\n", "lame_duck_s: -1.0 must be"),
        ("lame_duck_s = 2\nport = 5\n", "cannot change without a restart: port"),
    ):
        path.write_text(bad)
        with pytest.raises(ConfigError, match=said):
            reloader.reload()
        reloader.on_signal()  # says so in the log, and goes on
    assert applied == [] and source.current.config.lame_duck_s == 1.0
    path.write_text("lame_duck_s = 3\nmax_attempts = 7\n")  # a flag goes before the file
    assert reloader.reload() == [Change("lame_duck_s", 1.0, 3.0)]
    assert reloader.reload() == []
    assert applied == [(3.0, frozenset({"lame_duck_s"})), (3.0, frozenset())]
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        reloader.reload()
