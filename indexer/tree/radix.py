"""The index of cached prefixes: who holds which block. Owned by the actor, or by an embedder.

The kernel is _radix.pyx; its structure is told in _tree.pxd.
"""

from ._radix import Match, RadixTree

__all__ = ["Match", "RadixTree"]
