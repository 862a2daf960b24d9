"""The invariants of the tree: see tree_check.pyx, which the first import builds."""

from pathlib import Path

from instruments.build import load_instrument

check_integrity = load_instrument(Path(__file__).with_suffix(".pyx")).check_integrity
