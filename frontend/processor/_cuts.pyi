from collections.abc import Iterable
from typing import Self, final

@final
class Cutter:
    def __new__(cls, atoms: Iterable[str], stops: str, least: int, most: int) -> Self: ...
    def cuts(self, text: str, last: int, begin: int, end: int) -> list[int]: ...
