"""Endpoint picker: Envoy asks by external processing where each request of an OpenAI client goes.

Entered by the command `epp`, and by the servers of `serve` and `frontend`.
"""

from .listeners import EnvoyListeners
from .targets import ModelTargets, OneTarget, PickPool
