"""What an engine runs of a request."""

PREFILL, DECODE = "prefill", "decode"
