"""What other programs wrote into stores and Kubernetes and this process could not read, counted."""

from collections import Counter

SOURCES = ("kubernetes", "pods", "store")
"""What other routers' and engines' pods say of themselves; pods of an InferencePool, and it; keys
of etcd, NATS and the like."""
counts: Counter[str] = Counter()
"""By source; on the event loop."""
