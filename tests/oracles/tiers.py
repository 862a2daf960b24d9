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
        for external_hash, local in blocks:
            if external_hash in here and here[external_hash] == path[: len(here[external_hash])]:
                raise Refused("invalid_sequence")
            path = (*path, local)
            for other in [external_hash for external_hash, block in here.items() if block == path]:
                del here[other]
            here[external_hash] = path

    def remove(self, worker: Worker, tier: int, external_hashes: Iterable[int]) -> None:
        for external_hash in external_hashes:
            self.tiers(worker)[tier].pop(external_hash, None)

    def clear(self, worker: Worker, tier: int) -> None:
        self.tiers(worker)[tier].clear()

    def forget(self, worker: Worker) -> None:
        self.held.pop(worker, None)

    def overlap(self, worker: Worker, local_hashes: Sequence[int]) -> tuple[int, ...]:
        """Blocks of a prompt by tier: each tier goes on where the one above it ended."""
        depth, counts = 0, []
        for held in self.tiers(worker):
            blocks, begin = set(held.values()), depth
            while depth < len(local_hashes) and tuple(local_hashes[: depth + 1]) in blocks:
                depth += 1
            counts.append(depth - begin)
        return tuple(counts)
