"""KV events on their way into the index: subscribe, watch for gaps, ask again, save snapshots.

Entered by `serve`; the index itself needs none of it.
"""
