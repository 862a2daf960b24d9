"""Where tests find files: the checkout, its vectors, and the trace that may lie beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
CONVERSATION = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl"
