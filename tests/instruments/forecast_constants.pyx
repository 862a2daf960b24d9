"""The constants of the forecast's fits, for tests.

Built by tests/instruments/build.py over the kernels' own declarations; no part of the package.
"""
from dynamo_router.router.policy._latency cimport FADE, OUTLIER, PRIOR, SLOW
from dynamo_router.router.policy._model cimport FADE_SPEED, MIN_SAMPLES, MOST_SLOWER
from dynamo_router.router.policy._speed cimport ATTENDED_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS
from dynamo_router.router.policy._speed cimport EQUAL_SPEED, SLOWEST

fade, outlier, prior, slow = FADE, OUTLIER, PRIOR, SLOW
attended_tokens, chunk_tokens, context_tokens = ATTENDED_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS
fade_speed, min_samples, most_slower = FADE_SPEED, MIN_SAMPLES, MOST_SLOWER
equal_speed, slowest = EQUAL_SPEED, SLOWEST
