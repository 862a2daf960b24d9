"""What a record says of its traffic and of how it was routed, and what else would have given.

Entered by the command `report`.
"""

from .advice import advise
from .charts import Axis, Series, axis_of, lines, points
from .outlook import POLICIES, OutlookSettings, check_policies, look_ahead
from .page import write_page
from .page_style import STYLE
from .routing import fleet_of, judge_routing
