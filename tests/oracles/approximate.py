"""What the approximate index must say: a list of predictions in the order of their deadlines."""

from math import ceil, floor

from oracles.tree import OracleTree, Worker


class OracleApproximate:
    def __init__(self, ttl_s: float, max_blocks: int, ratio: float) -> None:
        self.ttl_s, self.max_blocks, self.keep = ttl_s, max_blocks, int(max_blocks * ratio)
        self.tree = OracleTree()
        self.deadlines: dict[tuple[Worker, int], int] = {}  # insertion order: earliest first

    def record(self, worker: Worker, path: list[int], hashes: list[int], now: float) -> None:
        self.expire(now)
        if self.ttl_s == 0:
            return
        deadline = ceil((now + self.ttl_s) * 10)
        for external_hash in reversed(hashes):
            self.deadlines.pop((worker, external_hash), None)
            self.deadlines[worker, external_hash] = deadline
        self.tree.store(worker, None, hashes, path)
        if len(self.deadlines) > self.max_blocks:
            while len(self.deadlines) > self.keep:
                self.forget(next(iter(self.deadlines)))

    def expire(self, now: float) -> None:
        for prediction, deadline in list(self.deadlines.items()):
            if deadline <= floor(now * 10):
                self.forget(prediction)

    def forget(self, prediction: tuple[Worker, int]) -> None:
        del self.deadlines[prediction]
        self.tree.remove(prediction[0], [prediction[1]])

    def remove_worker(self, worker: Worker) -> None:
        self.deadlines = {p: d for p, d in self.deadlines.items() if p[0] != worker}
        self.tree.drop_worker(worker)
