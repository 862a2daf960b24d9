"""Leases: which front has which bookings. They last as long as its connection. Pure."""


class Leases:
    """What one front has booked and what it waits for, by the ids of bookings and of questions.

    Invariants: a booking is of one front, and freed once, when the front says so or is gone. An
    answer that nobody waits for any more books nothing.
    """

    def __init__(self) -> None:
        self._booked: set[str] = set()
        self._waiting: dict[int, str] = {}

    def __len__(self) -> int:
        """Bookings."""
        return len(self._booked)

    def __contains__(self, booking_id: object) -> bool:
        return booking_id in self._booked

    @property
    def waiting(self) -> int:
        """Questions that have no answer yet."""
        return len(self._waiting)

    @property
    def booked(self) -> list[str]:
        return list(self._booked)

    def ask(self, serial: int, booking_id: str) -> None:
        """A question came. ValueError if its number is that of another one."""
        if serial in self._waiting:
            raise ValueError(f"question {serial} was asked already")
        self._waiting[serial] = booking_id

    def answer(self, serial: int, *, booked: bool) -> bool:
        """It is answered; False if nobody waits for that, and its booking is to be freed."""
        booking_id = self._waiting.pop(serial, None)
        if booking_id is None:
            return False
        if booked:
            self._booked.add(booking_id)
        return True

    def book(self, booking_id: str) -> None:
        """Something is booked that was not asked for here."""
        self._booked.add(booking_id)

    def forget(self, serial: int, booking_id: str) -> bool:
        """Nobody waits for an answer any more; whether it was given, and its booking is to be freed
        now."""
        if self._waiting.pop(serial, None) is not None:
            return False
        return self.free(booking_id)

    def free(self, booking_id: str) -> bool:
        """A booking ended; False if this front has none of that id."""
        if booking_id not in self._booked:
            return False
        self._booked.discard(booking_id)
        return True

    def end(self) -> tuple[list[int], list[str]]:
        """The front is gone: the questions to give up, the bookings to free."""
        waiting, booked = list(self._waiting), list(self._booked)
        self._waiting.clear()
        self._booked.clear()
        return waiting, booked
