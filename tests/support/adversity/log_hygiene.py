"""What hostile peers write, and what a router's log may have of it."""

import json
import re

SECRET = "sk-S3CRET-0123456789"
FORGED = (
    "boom\n2026-01-01T00:00:00.000000 [info     ] worker ready worker=9\r\n"
    "\x1b[2J\x1b]0;x\x07 \u2028[info ] two\u2029\x85 three \u202egpj.exe\u2066 \x9b2J \x00"
)
MEGABYTE = 1 << 20
TEXTS = (
    FORGED,
    FORGED * (MEGABYTE // len(FORGED)),
    f"tried nats://user:{SECRET}@{FORGED}",
    "@" + "a://" * (MEGABYTE // 4),
)
"""The last takes forever where a pattern is tried anew from each place."""


def check_log(text: str, log_format: str) -> None:
    """AssertionError for a line that is none of ours, a stack, a secret, an unended coroutine."""
    for line in text.rstrip("\n").split("\n"):
        assert line.isprintable(), line
        own = line.startswith(("dynamo-router ready", "dynamo-router: ")) or re.match(
            r"20\d\d-\d\d-\d\dT[\d:.]+", line
        )
        assert own if log_format == "text" else line.startswith(("{", "dynamo-router")), line
        assert not line.startswith("2026-01-01"), line
        assert len(line.encode()) <= 17 << 10, line[:1000]
        if line.startswith("{"):
            json.loads(line)
    for word in ("Traceback", SECRET, "never awaited", "[asyncio]", "never retrieved"):
        assert word not in text, [line[:500] for line in text.splitlines() if word in line][:3]
