"""PeerEvidence: weighs what other routers claim to have sent to workers against what the workers do
for this one. Pure.

An engine begins prompts in the order in which they come. So a prompt that another router claims to
have sent to a worker, and that has no first token well after one of ours that came later has its,
is not there. Such a claim is refuted; a router with many of them is doubted for a while, and so is
each that comes meanwhile, since a process can call itself by a new id at any time.

A claim is known by its key, OWNER/REQUEST; times are seconds of one clock.
"""

from collections.abc import Callable, Iterator

SLACK_S = 0.25
"""A claim arrived this long before our request was booked: it came first, however late its
router sends it."""
GRACE_S = 0.5
"""So long after our first token its own one may be reported,"""
LATE_S = 3.0
"""and so long where messages of its router are missing."""
MANY = 32
"""Refuted claims of a router within STRIKES_S, from which on it is doubted."""
STRIKES_S = 60.0
DOUBT_S = 30.0
"""For so long a router is doubted at first; twice as long each time, up to MAX_DOUBT_S."""
MAX_DOUBT_S = 3600.0
CROWDED = 2
"""Times more answers than its engine can run, or blocks than its cache has, that no honest router
claims."""


class PeerEvidence:
    """What is claimed on each worker. Memory is that of the claims."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, float]] = {}  # by worker: no first token, oldest first
        self._running: dict[int, dict[str, float]] = {}  # by worker: with one
        self._worker_of: dict[str, int] = {}
        self._suspects: dict[str, float] = {}  # when they were overtaken, in that order
        self._refuted: set[str] = set()
        self._own: dict[str, tuple[int, float]] = {}  # ours that wait for their first token
        self._owners: set[str] = set()
        self._strikes: dict[str, tuple[int, float]] = {}
        self._doubts: dict[str, float] = {}
        self._doubt_until = self._relapse_until = float("-inf")
        self._doubt_s = DOUBT_S
        self.moved_at = float("-inf")
        """when one of them had its first token, or ended"""
        self.refuted = 0
        """claims, ever"""
        self.doubted = 0
        """routers that were doubted for their claims, ever"""

    def __len__(self) -> int:
        return len(self._worker_of)

    # What the others claim

    def counts(self, key: str, now: float) -> bool:
        """Whether a claim is to be counted as load."""
        owner = _owner(key)
        if owner not in self._owners:
            self._owners.add(owner)
            if now < self._doubt_until:
                self._doubts[owner] = self._doubt_until
        return key not in self._refuted and now >= self._doubts.get(owner, now)

    def on_claim(self, key: str, number: int, prefilled: bool, now: float) -> None:
        """It was counted."""
        self._worker_of[key] = number
        kind = self._running if prefilled else self._waiting
        kind.setdefault(number, {})[key] = now

    def on_prefilled(self, key: str, now: float) -> bool:
        """Its router reports the first token. True: the claim was refuted, and is not any more. Its
        prompt was there, and was only overtaken: it is to be counted as one that is computed."""
        refuted = key in self._refuted
        self._refuted.discard(key)
        number = self._worker_of.get(key)
        if number is not None:
            self.moved_at = now
            self._drop(self._waiting, number, key)
            self._running.setdefault(number, {})[key] = now
        self._suspects.pop(key, None)
        return refuted

    def on_ended(self, key: str, now: float) -> None:
        if key in self._worker_of:
            self.moved_at = now
        self._refuted.discard(key)
        self.withdraw(key)

    def withdraw(self, key: str) -> None:
        """It counts no more."""
        number = self._worker_of.pop(key, None)
        self._suspects.pop(key, None)
        if number is not None:
            self._drop(self._waiting, number, key)
            self._drop(self._running, number, key)

    def on_worker_gone(self, number: int) -> None:
        for key in [*self._waiting.get(number, ()), *self._running.get(number, ())]:
            self.withdraw(key)
        for key in [key for key in self._suspects if self._worker_of.get(key) == number]:
            self.withdraw(key)

    def on_gone(self, owner: str, now: float) -> None:
        """A router has left, or fell silent; its claims end after this."""
        if sum(_owner(key) == owner for key in self._suspects) >= MANY:
            self._doubt(now)
        self._owners.discard(owner)
        self._strikes.pop(owner, None)
        self._doubts.pop(owner, None)

    # What engines do for this router

    def on_own_booked(self, request_id: str, number: int, now: float) -> None:
        self._own[request_id] = number, now

    def on_own_ended(self, request_id: str) -> None:
        self._own.pop(request_id, None)

    def on_own_first_token(
        self, request_id: str, now: float, max_num_seqs: int, overbooked: Callable[[], bool]
    ) -> None:
        """Its worker, which runs at most `max_num_seqs` (0: not known), has computed its prompt.

        `overbooked`: whether what is claimed there does not fit into its cache.
        """
        number, booked_at = self._own.pop(request_id, (-1, 0.0))
        before = booked_at - SLACK_S
        waiting = self._waiting.get(number, {})
        for key in list(_until(waiting, before)):
            self._suspects[key] = now
            del waiting[key]
        running = self._running.get(number, {})
        if len(running) > CROWDED * max_num_seqs > 0 or (running and overbooked()):
            for key in _until(running, before):
                self._suspects.setdefault(key, now)

    # The verdict

    def judge(self, now: float, settled_at: Callable[[str], float]) -> list[str]:
        """The claims that are refuted by now, which are to be withdrawn.

        `settled_at`: when all that an owner had sent was last known to be here.
        """
        refuted = []
        for key, since in self._suspects.items():
            if now - since < GRACE_S:
                break
            if now - since >= LATE_S or settled_at(_owner(key)) >= since + GRACE_S:
                refuted.append(key)
        doubted = set()
        for key in refuted:
            self._refuted.add(key)
            owner = _owner(key)
            count, since = self._strikes.get(owner, (0, now))
            if now - since > STRIKES_S:
                count, since = 0, now
            self._strikes[owner] = count + 1, since
            if count + 1 >= MANY:
                doubted.add(owner)
        self.refuted += len(refuted)
        if doubted:
            self._doubt(now)
            for owner in doubted:
                self._strikes.pop(owner)
                self._doubts[owner] = self._doubt_until
            refuted += [
                key
                for key in self._worker_of
                if _owner(key) in doubted and key not in self._refuted
            ]
        return refuted

    def _doubt(self, now: float) -> None:
        self.doubted += 1
        again = now < self._relapse_until
        self._doubt_s = min(MAX_DOUBT_S, 2 * self._doubt_s) if again else DOUBT_S
        self._doubt_until = now + self._doubt_s
        self._relapse_until = now + 10 * self._doubt_s

    @staticmethod
    def _drop(kind: dict[int, dict[str, float]], number: int, key: str) -> None:
        some = kind.get(number, {})
        if some.pop(key, None) is not None and not some:
            del kind[number]


def _owner(key: str) -> str:
    return key.partition("/")[0]


def _until(claims: dict[str, float], before: float) -> Iterator[str]:
    """Those that had arrived by then; they are in that order."""
    for key, arrived_at in claims.items():
        if arrived_at > before:
            return
        yield key
