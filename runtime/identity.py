"""Dynamo's name for who a worker is: see base/identity.py."""

from ..base.identity import *  # noqa: F403
