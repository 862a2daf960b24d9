"""The constants of the forecast: see forecast_constants.pyx, which the first import builds."""

from pathlib import Path

from instruments.build import load_instrument

_kernel = load_instrument(Path(__file__).with_suffix(".pyx"))

FADE: float = _kernel.fade
OUTLIER: float = _kernel.outlier
PRIOR: float = _kernel.prior
SLOW: float = _kernel.slow
ATTENDED_TOKENS: float = _kernel.attended_tokens
CHUNK_TOKENS: float = _kernel.chunk_tokens
CONTEXT_TOKENS: float = _kernel.context_tokens
FADE_SPEED: float = _kernel.fade_speed
MIN_SAMPLES: int = _kernel.min_samples
MOST_SLOWER: float = _kernel.most_slower
EQUAL_SPEED: float = _kernel.equal_speed
SLOWEST: float = _kernel.slowest
