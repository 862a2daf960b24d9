"""LoadPicture: what a front knows of the workers' loads, and where requests go by that alone. Pure.

The decider tells all loads now and then. While it is away, the last of that and what this front has
done since are all there is.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ...base.errors import NoWorkersError
from ...base.identity import WorkerWithDpRank


class LoadPicture:
    """Requests by rank, as they were told last, and this front's own since then.

    The other fronts are taken to do as this one does: a request that it sends, or ends, counts once
    for each of them.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._told: dict[WorkerWithDpRank, int] = {}
        self._since: Counter[WorkerWithDpRank] = Counter()
        self.fronts = 1
        """how many there are"""

    def tell(self, loads: Iterable[tuple[int, int, int]]) -> None:
        """The loads as they are now: worker id, rank, requests. Ranks with none may be missing."""
        self._told = {WorkerWithDpRank(worker, rank): count for worker, rank, count in loads}
        self._since.clear()

    def on_sent(self, worker: WorkerWithDpRank) -> None:
        """A request of ours goes there, and the decider does not know."""
        self._since[worker] += 1

    def on_ended(self, worker: WorkerWithDpRank) -> None:
        """A request of ours ended there, and the decider does not know."""
        self._since[worker] -= 1

    def load(self, worker: WorkerWithDpRank) -> int:
        """Requests that it is taken to have; never less than none."""
        return max(0, self._told.get(worker, 0) + self.fronts * self._since[worker])

    def choose(
        self,
        ready: Mapping[WorkerWithDpRank, float],
        *,
        excluded: Collection[int] = (),
        pinned: WorkerWithDpRank | None = None,
    ) -> WorkerWithDpRank:
        """The least loaded of the ranks that are ready, each with its weight; ties are drawn.

        NoWorkersError if there is none that the request may go to.
        """
        loads = {
            worker: (1 + self.load(worker)) / weight
            for worker, weight in ready.items()
            if worker.worker_id not in excluded and pinned in (None, worker)
        }
        if not loads:
            raise NoWorkersError("no worker is eligible")
        least = min(loads.values())
        return self._rng.choice([worker for worker, load in loads.items() if load <= least])
