"""Whether a request goes now, waits, or is refused: limits on load, and the queue.

Entered by KvRouter (limits) and by the dispatcher (queue); the queue is pure, its clock is given.
"""
