"""The bench of routers that share load: what it measures is told, and counted."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.bookings import Bookings, BookingsBenchConfig, run

SMALL = BookingsBenchConfig(routers=3, workers=4, blocks=8, batch=2, requests=4, rounds=2)


def test_both_sides_have_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    small = BookingsBenchConfig(
        routers=3, workers=4, blocks=8, batch=2, requests=4, rounds=2, json=str(path)
    )
    assert run(small) == 0
    rows = json.loads(path.read_text())["bookings"]
    assert set(rows) == {"told_us", "heard_us"} and rows["heard_us"]["min"] > 0
    assert "to apply one" in capsys.readouterr().out


def test_every_request_is_heard_of_and_none_stays() -> None:
    bookings = Bookings(SMALL)
    bookings.round()
    peers = bookings._receiver.replica.peers
    assert peers.counts.batches == 2 * 2 * 3  # two routers, two batches of requests, three events
    assert len(peers) == 0 and bookings._receiver.slots.total_requests == 0
    bookings.close()


@pytest.mark.parametrize(
    ("key", "value"), [("routers", 1), ("workers", 0), ("blocks", 7), ("batch", 0), ("rounds", 0)]
)
def test_a_value_out_of_range_names_its_key(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        BookingsBenchConfig(**{key: value})  # type: ignore[arg-type]
