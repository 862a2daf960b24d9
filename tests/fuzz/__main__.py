"""python tests/fuzz TARGET: feed one target for a while, from its seeds on.

With atheris installed coverage leads the way (of the kernels too, where they were built for it: see
CONTRIBUTING.md); without it seeds are damaged at random. An input that fails is left in --found and
named; the exit code is then not 0.
"""

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.damage import damage  # noqa: E402
from fuzz.seeds import SEEDS, known_words, write_corpus  # noqa: E402
from fuzz.targets import LONGEST, TARGETS  # noqa: E402


def fuzz_at_random(
    target: Callable[[bytes], None], seeds: list[bytes], *, seconds: float, seed: int, found: Path
) -> int:
    """The exit code: 1 at the first input that breaks a law."""
    rng = random.Random(seed)
    end, runs = monotonic() + seconds, 0
    while monotonic() < end:
        data = rng.choice(seeds)
        for _ in range(rng.randint(0, 3)):
            data = damage(data, rng)[:LONGEST]
        runs += 1
        try:
            target(data)
        except Exception:
            traceback.print_exc()
            path = found / f"crash-{sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"run {runs} of seed {seed} broke a law: {path}")
            return 1
    print(f"{runs} runs of seed {seed}, no law broken")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, help="keep what coverage found interesting here")
    parser.add_argument("--found", type=Path, default=Path("."), help="where failing inputs go")
    parser.add_argument("--input", type=Path, help="run this one input only")
    given = parser.parse_args()
    target = TARGETS[given.target]
    if given.input is not None:
        target(given.input.read_bytes())
        return 0
    try:
        import atheris
    except ImportError:
        seeds = list(SEEDS[given.target])
        return fuzz_at_random(
            target, seeds, seconds=given.seconds, seed=given.seed, found=given.found
        )
    with tempfile.TemporaryDirectory() as scratch:
        corpus = given.corpus or Path(scratch) / "corpus"
        write_corpus(corpus, given.target)
        words = Path(scratch) / "words"
        words.write_text("".join(f'"{word}"\n' for word in known_words()))
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={given.seconds}",
                f"-seed={given.seed or 1}",
                f"-max_len={2 * max(map(len, SEEDS[given.target]))}",
                f"-dict={words}",
                f"-artifact_prefix={given.found}/",
                "-timeout=20",
                str(corpus),
            ],
            target,
        )
        atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
