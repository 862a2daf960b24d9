"""A real etcd on loopback, alone or as one of a cluster."""

import json
import subprocess
from pathlib import Path

from support.free_port import free_port
from support.polling import wait_until
from support.servers.child import START_S, Child, find_program


class EtcdServer(Child):
    """`peers`: the name of each member of its cluster to the port that members talk on."""

    ready_word = "ready to serve client requests"

    def __init__(
        self,
        folder: Path,
        *options: str,
        name: str = "alone",
        peers: dict[str, int] | None = None,
        scheme: str = "http",
    ) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._folder, self._options, self._name = folder, options, name
        self._peers = peers or {name: free_port()}
        self._data = 0

    def command(self) -> list[str]:
        peer = f"http://127.0.0.1:{self._peers[self._name]}"
        cluster = ",".join(f"{name}=http://127.0.0.1:{p}" for name, p in self._peers.items())
        return [
            find_program("etcd"), "--name", self._name,
            "--data-dir", str(self._folder / f"data-{self._data}"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, "--heartbeat-interval", "50",
            "--election-timeout", "500", *self._options,
        ]  # fmt: skip

    def lose_data(self) -> None:
        """Let the next start be one of a new cluster."""
        self._data += 1

    def control(self, *words: str) -> str:
        """Run etcdctl on it; what it prints."""
        command = [find_program("etcdctl"), "--endpoints", self.url, *words]
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
        return done.stdout.decode()

    @property
    def leads(self) -> bool:
        """Whether it is its cluster's leader, by its own word."""
        (told,) = json.loads(self.control("endpoint", "status", "--write-out", "json"))
        leads: bool = told["Status"]["leader"] == told["Status"]["header"]["member_id"]
        return leads


def start_cluster(folder: Path, members: int = 3) -> list[EtcdServer]:
    """The members of a new cluster, once all serve."""
    peers = {f"m{number}": free_port() for number in range(members)}
    servers = [EtcdServer(folder / name, name=name, peers=peers) for name in peers]
    for server in servers:
        server.launch()
    wait_until(lambda: all(server.ready() for server in servers), START_S)
    return servers
