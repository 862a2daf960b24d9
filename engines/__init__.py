"""An engine's own side: serving it as a worker, mock engines, publishing its KV events."""
