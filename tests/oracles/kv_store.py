"""A key-value store as a dictionary: what every real one has to agree with."""

from dataclasses import dataclass, field


@dataclass
class OracleStore:
    """Keys to (value, lease); which of the leases given so far are still held."""

    keys: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    leases: set[int] = field(default_factory=set)

    def put(self, key: str, value: bytes, lease: int | None) -> None:
        self.keys[key] = (value, lease)

    def create(self, key: str, value: bytes, lease: int | None) -> bool:
        if key in self.keys:
            return False
        self.put(key, value, lease)
        return True

    def delete(self, key: str) -> bool:
        return self.keys.pop(key, None) is not None

    def revoke(self, lease: int) -> None:
        self.leases.discard(lease)
        for key in [key for key, (_, held) in self.keys.items() if held == lease]:
            del self.keys[key]

    def entries(self, prefix: str) -> list[tuple[str, bytes]]:
        return sorted((k, v) for k, (v, _) in self.keys.items() if k.startswith(prefix))
