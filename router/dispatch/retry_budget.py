"""How many requests may be on a further attempt at once. Pure."""


class RetryBudget:
    """Bounds the work that retries add: a fleet that fails for want of room gets no storm of them.

    At most `share` of the requests in flight, and at least `least`, are on a second or later
    attempt that has not begun to answer. A request whose worker is gone does not count: what it
    asked of that worker is not asked twice.
    """

    def __init__(self, share: float, least: int) -> None:
        self.share = share
        self.least = least
        self.retrying = 0
        """attempts that count now"""
        self.granted = 0
        """retries that counted, ever"""
        self.refused = 0
        """retries that were not made for want of budget, ever"""

    def limit(self, in_flight: int) -> int:
        """How many may be retrying beside each other."""
        return max(self.least, int(self.share * in_flight))

    def take(self, in_flight: int) -> bool:
        """One more retry, if the budget has it. Give it back by `give_back`."""
        if self.retrying >= self.limit(in_flight):
            self.refused += 1
            return False
        self.retrying += 1
        self.granted += 1
        return True

    def give_back(self) -> None:
        """A retry began to answer, or ended."""
        assert self.retrying > 0
        self.retrying -= 1
