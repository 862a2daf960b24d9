"""Who a process is in a Kubernetes cluster: its pod, or a container of it, and the id of that.

Source: Dynamo's Kubernetes discovery. The id is SipHash-1-3 (key 0, 0) of the name in UTF-8
followed by a byte 0xFF, below 2**53. So it stays the same when a container starts again, and the
address under it may be another one then.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....process.settings import bad_setting

POD_INFO = Path("/etc/podinfo")
"""Where the downward API mounts files; they win over the environment."""
MAIN_CONTAINER = "main"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod that registers itself, or one container of it."""

    pod: str
    uid: str
    namespace: str
    container: str | None = None

    @property
    def name(self) -> str:
        """What its metadata is called."""
        if self.container in (None, MAIN_CONTAINER):
            return self.pod
        return f"{self.pod}-{self.container}"

    @property
    def instance_id(self) -> int:
        return instance_id_of(self.name)

    @property
    def owner(self) -> dict[str, Any]:
        """The reference by which its metadata is deleted with the pod."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": self.pod,
            "uid": self.uid,
            "controller": self.name == self.pod,
            "blockOwnerDeletion": False,
        }

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, folder: Path = POD_INFO
    ) -> "PodIdentity | None":
        """From POD_NAME, POD_UID and POD_NAMESPACE; None if neither name nor uid is given.

        ConfigError if one of the two is missing.
        """
        given = os.environ if environ is None else environ
        name, uid = (_pod_info(given, folder, key) for key in ("POD_NAME", "POD_UID"))
        if not name and not uid:
            return None
        for key, value in (("POD_NAME", name), ("POD_UID", uid)):
            if not value:
                raise bad_setting(key, "is not set: a pod that registers itself needs it")
        container = given.get("CONTAINER_NAME") if container_mode(given) else None
        return cls(name, uid, namespace_of(given, folder), container or None)


def namespace_of(environ: Mapping[str, str], folder: Path = POD_INFO) -> str:
    """The Kubernetes namespace that everything happens in."""
    return _pod_info(environ, folder, "POD_NAMESPACE") or "default"


def container_mode(environ: Mapping[str, str]) -> bool:
    """Whether each container of a pod is an instance, by DYN_KUBE_DISCOVERY_MODE."""
    mode = environ.get("DYN_KUBE_DISCOVERY_MODE") or "pod"
    if mode not in ("pod", "container"):
        raise bad_setting("DYN_KUBE_DISCOVERY_MODE", f"{mode!r} is neither pod nor container")
    return mode == "container"


def instance_id_of(name: str) -> int:
    """The id of the process that registers under this name."""
    return _siphash_1_3(name.encode() + b"\xff") & ((1 << 53) - 1)


def _pod_info(environ: Mapping[str, str], folder: Path, key: str) -> str:
    try:
        return (folder / key.lower()).read_text().strip()
    except OSError:
        return environ.get(key, "")


def _siphash_1_3(data: bytes) -> int:
    """SipHash with one round a word and three at the end, with a key of zeros.

    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012).
    """
    state = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state[3] ^= word
        _round(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(v: list[int]) -> None:
    v[0] = v[0] + v[1] & _MASK
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] = v[2] + v[3] & _MASK
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3] & _MASK
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1] & _MASK
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK
