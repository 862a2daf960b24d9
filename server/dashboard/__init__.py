"""The dashboard: a page that shows the fleet and its decisions, and the data that it reads.

Entered by `serve`, and by a frontend that has a tokenizer.
"""

from .dashboard import Dashboard, Tokenize
from .pages import PageData
from .routes import DashboardRoutes, PagedPool, ShownPool
