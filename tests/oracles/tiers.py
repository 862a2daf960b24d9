"""What each worker holds in each storage tier, and what it is worth to a prompt, block by block."""

from collections.abc import Iterable, Sequence

from oracles.tree import Refused, Worker

DEVICE, TIERS = 0, 4
Path = tuple[int, ...]  # the local hashes from the start of a prompt to a block


class OracleTiers:
    def __init__(self) -> None:
        self.held: dict[Worker, list[dict[int, Path]]] = {}  # by tier: external hash -> block

    def tiers(self, worker: Worker) -> list[dict[int, Path]]:
        return self.held.setdefault(worker, [{} for _ in range(TIERS)])

    def store(
        self, worker: Worker, tier: int, parent: int | None, blocks: Iterable[tuple[int, int]]
    ) -> None:
        """Blocks (external, local) below a parent: on the device, one that is held there."""
        tiers = self.tiers(worker)
        here, path = tiers[tier], ()
        if parent is not None:
            where = [here] if tier == DEVICE else [here, *tiers]
            found = [held[parent] for held in where if parent in held]
            if not found:
                raise Refused("parent_not_found")
            path = found[0]
        for ext, local in blocks:
            if ext in here and here[ext] == path[: len(here[ext])]:
                raise Refused("invalid_sequence")
            path = (*path, local)
            for other in [key for key, block in here.items() if block == path]:
                del here[other]
            here[ext] = path

    def remove(self, worker: Worker, tier: int, exts: Iterable[int]) -> None:
        for ext in exts:
            self.tiers(worker)[tier].pop(ext, None)

    def clear(self, worker: Worker, tier: int) -> None:
        self.tiers(worker)[tier].clear()

    def forget(self, worker: Worker) -> None:
        self.held.pop(worker, None)

    def overlap(self, worker: Worker, locals_: Sequence[int]) -> tuple[int, ...]:
        """Blocks of a prompt by tier: each tier goes on where the one above it ended."""
        depth, counts = 0, []
        for held in self.tiers(worker):
            blocks, begin = set(held.values()), depth
            while depth < len(locals_) and tuple(locals_[: depth + 1]) in blocks:
                depth += 1
            counts.append(depth - begin)
        return tuple(counts)
