"""Faults put into a tree: see tree_faults.pyx, which the first import builds."""

from pathlib import Path

from instruments.build import load_instrument

_kernel = load_instrument(Path(__file__).with_suffix(".pyx"))

fail_allocations_after = _kernel.fail_allocations_after
flip_bit = _kernel.flip_bit
watched_yield_points = _kernel.watched_yield_points
