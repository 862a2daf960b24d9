"""The index that follows KV events: mailbox, cursor per source, a tree per tier, one owning thread.

Entered by the router and by whoever embeds an index; snapshots read and restore it.
"""
