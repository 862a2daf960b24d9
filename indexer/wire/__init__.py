"""How KV events are written: as Python values, as JSON and msgpack bytes, decoded and encoded.

Entered by publishers, feeds and tools; the trees know only the decoded events.
"""
