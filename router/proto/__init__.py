"""The RouterService protocol: its messages, made by generate.sh, and its calls (stub.py)."""

from .stub import RouterServiceStub
