"""The record of a server's traffic: a line for each request, without text and ids, as a trace that
`simulate`, `analyze`, `sweep` and `report` read.

Entered by the server's parts, pools and routes.
"""

from .recorder import OUTCOMES, PoolRecord, Recorder, recorder_of
