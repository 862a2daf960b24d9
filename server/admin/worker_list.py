"""WorkerList: the workers that the configuration names, kept as it, and DNS, have them."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import structlog

from ...base.errors import ConfigError
from ...process.supervised import stopped, supervise
from ...workers.dns_name import NameState, Resolve, resolve
from ...workers.health import HealthMonitor
from ...workers.worker_url import WorkerName, WorkerUrl, parse_worker
from .worker_admin import WorkerAdmin

LOOKUP_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


class WorkerList:
    """Adds the workers of a list of URLs, and those at the addresses of its DNS names, which are
    looked up every `refresh_s`. What is on the list no longer, or gone from DNS, retires.

    Those that an admin call has drained or removed are not brought back while they stay on the list
    or in DNS.
    """

    def __init__(
        self,
        admin: WorkerAdmin,
        monitor: HealthMonitor,
        *,
        refresh_s: float,
        resolve: Resolve = resolve,
    ) -> None:
        self.refresh_s = refresh_s
        self._admin, self._monitor, self._resolve = admin, monitor, resolve
        self._names: dict[str, _Name] = {}
        self._plain: set[str] = set()  # addresses that the list has itself
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self, urls: Sequence[str]) -> None:
        """Begin with this list, and wait until its names were looked up once. ConfigError if one
        is not valid."""
        check_worker_lists((), urls)
        self.reconcile((), urls)
        await asyncio.gather(*(name.first.wait() for name in self._names.values()))

    def reconcile(self, old: Sequence[str], new: Sequence[str]) -> None:
        """Go from one list of URLs, which were checked, to another."""
        before, after = _by_key(old), _by_key(new)
        self._plain = {key for key, url in after.items() if isinstance(url, WorkerUrl)}
        for key in before.keys() - after.keys():
            gone = before[key]
            if isinstance(gone, WorkerName):
                self._drop(key)
            else:
                self._retire(gone.address)
        for key, wanted in after.items():
            known = before.get(key)
            if isinstance(wanted, WorkerUrl):
                self._have(wanted, again=known is None)
                if known is not None and known.weight != wanted.weight:
                    self._weigh(wanted.address, wanted.weight)
            elif known is None:
                self._watch(key, wanted)
            else:
                self._names[key].name = wanted
                for ip in self._names[key].state.addresses if known.weight != wanted.weight else ():
                    self._weigh(wanted.worker_at(ip).address, wanted.weight)

    async def close(self) -> None:
        """Look nothing up any more."""
        for name in self._names.values():
            await stopped(name.task)
        self._names.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _watch(self, key: str, name: WorkerName) -> None:
        entry = self._names[key] = _Name(name)
        entry.task = supervise(f"dns-{name.host}", lambda: self._look_up_often(entry))

    def _drop(self, key: str) -> None:
        entry = self._names.pop(key)
        assert entry.task is not None
        entry.task.cancel()  # at once: what it is about to learn does not count any more
        for ip in entry.state.addresses:
            self._retire(entry.name.worker_at(ip).address)
        ending = asyncio.create_task(stopped(entry.task))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _look_up_often(self, entry: "_Name") -> None:
        while True:
            try:
                await self._look_up(entry)
            finally:
                entry.first.set()
            await asyncio.sleep(self.refresh_s * random.uniform(0.9, 1.1))

    async def _look_up(self, entry: "_Name") -> None:
        name = entry.name
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                found = await self._resolve(name)
            why = "" if found else "it has no address"
        except (OSError, TimeoutError) as error:
            found, why = [], str(error) or "the lookup takes too long"
        if why != entry.trouble:
            entry.trouble = why
            if why:
                log.warning("name not resolved, its workers stay", name=str(name), reason=why)
        change = entry.state.on_answer(found)
        if change.come or change.gone:
            log.info("name has other addresses", name=str(name), come=change.come, gone=change.gone)
        for ip in change.come:
            self._have(name.worker_at(ip), again=True)
        for ip in change.gone:
            self._retire(name.worker_at(ip).address)

    def _have(self, url: WorkerUrl, *, again: bool) -> None:
        """Add a worker. `again`: it may be on its way out, and is taken back."""
        engine = self._monitor.find(url.address)
        if engine is None:
            if again:
                self._monitor.add(url)
        elif again and self._admin.is_retiring(engine):
            self._admin.resume(engine, url.weight)

    def _retire(self, address: str) -> None:
        named = (entry.has(address) for entry in self._names.values())
        if address in self._plain or any(named):
            return  # it is still there by another name
        if (engine := self._monitor.find(address)) is not None:
            self._admin.retire(engine)

    def _weigh(self, address: str, weight: float) -> None:
        if (engine := self._monitor.find(address)) is not None:
            self._monitor.set_weight(engine, weight)


class _Name:
    """A DNS name that is looked up."""

    def __init__(self, name: WorkerName) -> None:
        self.name = name
        self.state = NameState()
        self.trouble = ""
        self.first = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def has(self, address: str) -> bool:
        """Whether it has a worker at this address."""
        return any(self.name.worker_at(ip).address == address for ip in self.state.addresses)


def check_worker_lists(old: Sequence[str], new: Sequence[str]) -> None:
    """ConfigError if a list of URLs cannot take the place of another while the router runs."""
    before, after = _by_key(old), _by_key(new)
    if len(after) < len(new):
        twice = Counter(_key(parse_worker(url)) for url in new).most_common(1)[0][0]
        raise ConfigError(f"workers: {twice} is there twice: give each address once", key="workers")
    for key, url in after.items():
        known = before.get(key, url)
        if replace(known, weight=url.weight) != url:
            text = f"workers: {key} cannot become another worker, only its weight may change"
            raise ConfigError(text, key="workers")


def _by_key(urls: Sequence[str]) -> dict[str, WorkerUrl | WorkerName]:
    """What the URLs say, by address or name."""
    parsed = map(parse_worker, urls)
    return {_key(url): url for url in parsed}


def _key(url: WorkerUrl | WorkerName) -> str:
    return url.address if isinstance(url, WorkerUrl) else str(url)
