"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay`, `demo` and `proxy`.
"""
