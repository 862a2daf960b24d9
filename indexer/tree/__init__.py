"""Who holds which block: the path-compressed radix tree, its operations, budget and dump.

Entered by the indexes beside it: through RadixTree, or natively through `_ops.pxd`.
"""

from ._inspect import list_heaviest
from ._radix import Match, RadixTree
