"""python -m dynamo_router: the command dynamo-router."""

from .cli import main

main()
