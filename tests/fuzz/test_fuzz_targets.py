"""Every target of the fuzzers, within a fixed budget and without any tool."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.__main__ import fuzz_at_random
from fuzz.damage import damage
from fuzz.seeds import SEEDS, write_corpus
from fuzz.targets import TARGETS, decoded
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.indexer.wire.codec import decode_cache_event
from dynamo_router.server.dispatch.generate_request import read_generate

RUNS = 300
FUZZ = Path(__file__).parent


def test_every_target_has_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_golden(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


def test_messages_among_the_seeds_are_understood() -> None:
    for message in SEEDS["event_message"]:
        assert decoded(message) is not None, message
    for event in SEEDS["cache_event"]:
        decode_cache_event(1, event)
    for body in SEEDS["generate_request"]:
        read_generate(body, 16)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_seeds_break_no_law(name: str) -> None:
    rng = random.Random(name)  # the same in every run: a failure comes again
    for _ in range(RUNS):
        data = rng.choice(SEEDS[name])
        for _ in range(rng.randint(1, 3)):
            data = damage(data, rng)
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_break_no_law(name: str, data: bytes) -> None:
    TARGETS[name](data)


def test_a_corpus_is_the_seeds(tmp_path: Path) -> None:
    for name, seeds in SEEDS.items():
        write_corpus(tmp_path / name, name)
        written = {path.read_bytes() for path in (tmp_path / name).iterdir()}
        assert written == set(seeds)


def test_a_broken_law_is_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def target(data: bytes) -> None:
        assert b"\xff" not in data

    code = fuzz_at_random(target, [b"ab" * 20], seconds=60, seed=1, found=tmp_path)
    (kept,) = tmp_path.iterdir()
    assert code == 1 and b"\xff" in kept.read_bytes()
    assert str(kept) in capsys.readouterr().out


@pytest.mark.parametrize(("name", "code"), [("tree", 0), ("forest", 2)])
def test_the_runner(name: str, code: int, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_bytes(SEEDS["tree"][0])
    command = [sys.executable, str(FUZZ), name, "--input", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
