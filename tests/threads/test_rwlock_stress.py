"""Readers beside the writer, under ThreadSanitizer: no race, and no answer that was never true.

HYPOTHESIS_PROFILE=thorough runs it longer, and shows that it notices what it is there to notice.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from threads.stress_build import CannotSanitize, build

import dynamo_router

RUN = Path(__file__).with_name("stress_run.py")
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
RACE = 66

# What makes readers or the writer wait, taken away: file, what stands there, what instead.
MUTANTS = {
    "readers do not wait for the writer": (
        "indexer/event_index/_rwlock.pxd",
        "    return (atomic_load(&lock.arrived) & MARK) == ticket\n",
        "    return False\n",
    ),
    "the writer does not wait for readers": (
        "indexer/event_index/_rwlock.pxd",
        "    return atomic_load(&lock.left) != lock.before\n",
        "    return False\n",
    ),
    "no order of memory in what is counted": (
        "indexer/event_index/_threads.pxd",
        "__ATOMIC_SEQ_CST",
        "__ATOMIC_RELAXED",
    ),
    "readers get in while an edge is being split": (
        "indexer/tree/_shape.pxd",
        "    edge_uncover_all(old, &tree.memory)\n",
        "    edge_uncover_all(old, &tree.memory)\n"
        "    yield_after(&tree.memory.yield_points, 1000)\n",
    ),
}


def run(folder: Path, library: str, *, shared: bool, steps: int, readers: int, seed: int):
    """The process's exit code, what it saw, and what the sanitizer said."""
    done = subprocess.run(
        [sys.executable, RUN, folder, str(int(shared)), str(steps), str(readers), str(seed)],
        env=os.environ
        | {"LD_PRELOAD": library, "TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("stress")
    try:
        return folder, build(folder)
    except CannotSanitize as error:
        pytest.skip(f"needs ThreadSanitizer: {error}")


@pytest.mark.parametrize("shared", [True, False], ids=["rwlock", "mutex"])
@pytest.mark.parametrize("readers", [2, 4] if THOROUGH else [2])
@pytest.mark.parametrize("seed", range(1, 6) if THOROUGH else [1])
def test_every_answer_was_true_at_some_moment_of_its_read(
    stress: tuple[Path, str], shared: bool, readers: int, seed: int
) -> None:
    steps = 3000 if THOROUGH else 400
    code, seen, errors = run(*stress, shared=shared, steps=steps, readers=readers, seed=seed)
    assert code == 0, errors
    assert seen["threads"] == readers + 1 and seen["amid"] > 0
    assert (seen["wrong"], seen["torn"], seen["longest_wrong"]) == (0, 0, 0), seen
    assert seen["blocks"] == seen["blocks_of_oracle"]


@pytest.mark.skipif(not THOROUGH, reason="HYPOTHESIS_PROFILE is not thorough")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_it_notices(stress: tuple[Path, str], mutant: str, tmp_path: Path) -> None:
    name, old, new = MUTANTS[mutant]
    package = tmp_path / "package"
    for folder in ("indexer", "runtime"):
        shutil.copytree(
            Path(dynamo_router.__file__).parent / folder,
            package / folder,
            ignore=lambda _, names: [n for n in names if n.endswith((".so", ".c", ".pyx"))],
        )
    (package / "__init__.py").touch()
    source = (package / name).read_text()
    assert old in source
    (package / name).write_text(source.replace(old, new))
    library = build(tmp_path, package)
    code, seen, errors = run(tmp_path, library, shared=True, steps=2000, readers=3, seed=1)
    noticed = code == RACE or code < 0 or seen.get("wrong") or seen.get("torn")
    assert noticed, (code, seen, errors)
