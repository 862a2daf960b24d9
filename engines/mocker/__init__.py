"""Mock engines: paged prefix cache, scheduler and timing of an LLM engine, without the model.

Entered by simulations through virtual engines; the command `mocker` and tests run live ones.
"""

from .config import ENGINE_TYPES, EVEN_SPEEDS, PREEMPTION_MODES, EngineConfig, parse_speeds
from .own_model import OWN_MODEL
from .tiers import TierConfig
from .virtual import Emitted, EngineStats, Handoff, VirtualFleet
