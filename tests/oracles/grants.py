"""Who may write which block of an arena, in plain Python: sets, and one writer for each block."""


class OracleGrants:
    """See BlockGrants. Permissions to write outlive what the owner knows: `writers`."""

    def __init__(self, blocks: int) -> None:
        self.free = set(range(blocks))
        self.owned: set[int] = set()
        self.landed: set[int] = set()
        self.granted: dict[str, set[int]] = {}
        self.quarantined: dict[str, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        """by attempt: blocks into which its writer may really write now"""
        self.engine: dict[str, str] = {}
        self.dead: dict[str, float] = {}
        """when the last bytes of an attempt's dead writer have arrived"""

    def allocate(self, blocks: list[int]) -> None:
        assert set(blocks) <= self.free and len(set(blocks)) == len(blocks)
        assert not any(set(blocks) & each for each in self.writers.values()), "still written"
        self.free -= set(blocks)
        self.owned |= set(blocks)

    def give_free(self, blocks: list[int]) -> None:
        self.owned -= set(blocks)
        self.landed -= set(blocks)
        self.free |= set(blocks)

    def grant(self, attempt: str, blocks: list[int], engine: str) -> None:
        assert set(blocks) <= self.owned
        assert not any(set(blocks) & each for each in self.writers.values()), "two writers"
        self.owned -= set(blocks)
        self.granted[attempt] = self.writers[attempt] = set(blocks)
        self.engine[attempt] = engine

    def end_writer(self, attempt: str, done: bool) -> None:
        """Its writer's word, or a revocation that was carried out."""
        self.writers.pop(attempt)
        self.engine.pop(attempt)
        self.dead.pop(attempt, None)
        if attempt in self.quarantined:
            self.free |= self.quarantined.pop(attempt)
        elif done:
            self.landed |= self.granted.pop(attempt)
        else:
            self.owned |= self.granted.pop(attempt)

    def quarantine(self, attempt: str) -> None:
        if attempt in self.granted:
            self.quarantined[attempt] = self.granted.pop(attempt)

    def kill(self, engine: str, drained_at: float) -> None:
        for attempt in [each for each, of in self.engine.items() if of == engine]:
            self.quarantine(attempt)
            self.dead.setdefault(attempt, drained_at)

    def drain(self, now: float) -> set[str]:
        over = {attempt for attempt, at in self.dead.items() if at <= now}
        for attempt in over:
            self.end_writer(attempt, False)
        return over
