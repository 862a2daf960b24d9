"""The dashboard: a page that shows the fleet and its decisions, and the data that it reads.

Entered by `serve`, and by a frontend that has a tokenizer.
"""

from .dashboard import Dashboard, Tokenize
from .history import ProcessHistory
from .overview import Overview, OverviewQuestion, ProcessOverview, merged_overview
from .pages import PageData
from .plan_view import PlanView
from .routes import DashboardRoutes, PagedPool, ShownPool
