"""Which schedules of faults a test runs."""

from os import environ


def seeds_of(*usual: int) -> tuple[int, ...]:
    """These, or the one that ADVERSITY_SEED names."""
    return (int(environ["ADVERSITY_SEED"]),) if "ADVERSITY_SEED" in environ else usual
