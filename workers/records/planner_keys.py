"""Where a planner writes its decisions and the engines that it saw, for those that show them.

| bucket | key | value |
|---|---|---|
| `v1/planner_decisions` | `{namespace}/{id}`, 12 digits | a decision and what became of it, JSON |
| `v1/planner_status` | `{namespace}` | the planner that leads, and the engines lately, JSON |
"""

from ...runtime.kv_stores import KeyValueStore

DECISIONS, STATUS = "v1/planner_decisions", "v1/planner_status"


async def read_plan(store: KeyValueStore, namespace: str) -> tuple[list[bytes], bytes | None]:
    """(the decisions that are kept, oldest first; the status, None where no planner has written
    one). StoreError."""
    listing = await store.bucket(DECISIONS).entries(f"{namespace}/")
    status = await store.bucket(STATUS).get(namespace)
    return [entry.value for entry in listing.entries], None if status is None else status.value
