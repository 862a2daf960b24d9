"""How does a decision become engines? One Connector for each place where engines run.

Entered by the live planner.
"""

from .connector import Connector, ConnectorError
from .kubernetes_scale import KubernetesScale
from .local import LocalEngines, mocker_command
from .metric_targets import MetricTargets
from .virtual import VirtualFollower, VirtualKeys
