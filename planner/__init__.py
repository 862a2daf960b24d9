"""How many engines of which role? Plans by simulation, within constraints; who executes them."""

from .constraints import Change, Constraints, constrain
from .decision import Decision
from .fleet import ROLES, Fleet, Role
from .objectives import Objectives
from .observation import Observation, ObservedRequest, ObservedWorker, WorkerState, choose_victims
from .planner import Planner
from .planning import PlanningConfig
from .what_if import EngineModel
