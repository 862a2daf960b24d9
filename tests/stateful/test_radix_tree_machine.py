"""The radix tree agrees with the oracle after any sequence of events, and its books are right."""

from hypothesis import settings
from support.radix_tree_machine import RadixTreeMachine

TestRadixTreeMachine = RadixTreeMachine.TestCase
TestRadixTreeMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
