"""The slot table in plain Python, recounted from its requests on every question."""

from collections import Counter
from dataclasses import dataclass, field

WHOLE = 2**30  # the kernel counts fractions of a block in these units


@dataclass
class OracleRequest:
    worker: int
    hashes: list[object]
    prefill: int
    isl: int
    expected: int | None
    booked_at: float
    seen_blocks: int


@dataclass
class OracleSlots:
    block_size: int
    expiry_s: float
    max_entries: int = 2**24
    workers: set[int] = field(default_factory=set)
    requests: dict[str, OracleRequest] = field(default_factory=dict)  # oldest first
    losses: dict[tuple[int, object], int] = field(default_factory=dict)
    now: float = float("-inf")
    fresh: int = 0
    duplicates: int = 0
    refused: int = 0

    def holdings(self, worker: int) -> Counter[object]:
        """Block -> references, of one worker."""
        count: Counter[object] = Counter()
        for request in self.requests.values():
            if request.worker == worker:
                count.update(request.hashes)
        return count

    def add_request(
        self,
        request_id: str,
        worker: int,
        hashes: list[int] | None,
        isl: int,
        prefill: int,
        now: float,
        expected: int | None,
    ) -> bool:
        self.now = max(self.now, now)
        if request_id in self.requests:
            self.duplicates += 1
            return False
        if self.entries() + 1 + len(hashes or []) > self.max_entries:
            self.refused += 1
            return False
        self.requests[request_id] = OracleRequest(
            worker, list(hashes or []), prefill, isl, expected, self.now, -(-isl // self.block_size)
        )
        self.forget_stale_losses()
        return True

    def entries(self) -> int:
        return sum(1 + len(request.hashes) for request in self.requests.values())

    def forget_stale_losses(self) -> None:
        """A block that is shared, or gone, is whole."""
        for worker, block in list(self.losses):
            if self.holdings(worker)[block] != 1:
                del self.losses[worker, block]

    def mark_prefill_completed(self, request_id: str) -> bool:
        if request_id not in self.requests:
            return False
        self.requests[request_id].prefill = 0
        return True

    def add_output_tokens(self, request_id: str, generated: int) -> bool:
        request = self.requests.get(request_id)
        if request is None:
            return False
        total = -(-(request.isl + generated) // self.block_size)
        if total <= request.seen_blocks:
            return False
        request.seen_blocks = total
        if self.entries() >= self.max_entries:
            self.refused += 1
            return False
        self.fresh += 1
        request.hashes.append(("output", self.fresh))
        if request.expected:
            loss = min(WHOLE, generated * WHOLE // request.expected)
            refs = self.holdings(request.worker)
            for block in request.hashes:
                if refs[block] == 1:
                    self.losses[request.worker, block] = loss
        return True

    def touch(self, request_id: str, now: float) -> bool:
        self.now = max(self.now, now)
        if request_id not in self.requests:
            return False
        request = self.requests.pop(request_id)
        request.booked_at = self.now
        self.requests[request_id] = request
        return True

    def free(self, request_id: str) -> bool:
        known = self.requests.pop(request_id, None) is not None
        self.forget_stale_losses()
        return known

    def expire(self, now: float) -> list[str]:
        self.now = max(self.now, now)
        old = [
            request_id
            for request_id, request in self.requests.items()
            if self.now - request.booked_at > self.expiry_s
        ]
        for request_id in old:
            self.free(request_id)
        return old

    def remove_worker(self, worker: int) -> list[str]:
        gone = [i for i, request in self.requests.items() if request.worker == worker]
        for request_id in gone:
            self.free(request_id)
        self.workers.remove(worker)
        return gone

    def active_blocks(self, worker: int) -> int:
        units = sum(WHOLE - self.losses.get((worker, b), 0) for b in self.holdings(worker))
        return (2 * units + WHOLE) // (2 * WHOLE)

    def active_prefill_tokens(self, worker: int) -> int:
        return sum(r.prefill for r in self.requests.values() if r.worker == worker)

    def active_requests(self, worker: int) -> int:
        return sum(r.worker == worker for r in self.requests.values())

    def own_requests(self, worker: int, peer_mark: str) -> int:
        return sum(
            r.worker == worker and not name.startswith(peer_mark)
            for name, r in self.requests.items()
        )

    def potential(
        self, worker: int, hashes: list[int] | None, isl: int, overlap: int
    ) -> tuple[int, int]:
        held = self.holdings(worker)
        new = sum(block not in held for block in hashes or [])
        tokens = self.active_prefill_tokens(worker) + max(0, isl - overlap * self.block_size)
        return self.active_blocks(worker) + new, tokens
