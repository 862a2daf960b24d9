"""A trace against mock engines in virtual time and the real KvRouter; policies side by side.

Entered by the commands `simulate` and `sweep`, and by the benchmarks of policies.
"""

from .bounds import idle_engine_ms, pooled_hit_rate
from .capacity import CapacityConfig
from .changing_fleet import ChangingFleet
from .config import DEFAULT_COMPARE, DEFAULT_WORKERS, Load, SimulationConfig
from .experiment import Experiment, Result, compare_policies
from .handoffs import FIRST_TOKENS, RoleConfig
from .plots import draw_comparison
from .policies import PolicyVariant, parse_policies
from .prepared_trace import SimulatedTrace
from .request_log import RequestLog
from .sampled_trace import SampledRequest, SampledTrace
from .simulated_run import SimulatedRun
from .simulation import FleetSpec, Simulation
