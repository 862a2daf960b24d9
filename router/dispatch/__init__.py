"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""
