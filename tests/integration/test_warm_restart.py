"""A router that is killed among engines that go on, as real processes."""

import asyncio
import re
import signal
from pathlib import Path

from polling import until
from processes import command
from test_fleet import BLOCK, PROMPT, Fleet, eventually, fleet

__all__ = ["fleet"]
