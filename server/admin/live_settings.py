"""LiveSettings: the configuration of a running router, and the parts that take another one."""

from collections.abc import Sequence
from dataclasses import replace

from ...process.logs import LogOutput
from ...router.admission import Admission
from ...router.kv_router import KvRouter
from ...workers.health import HealthMonitor
from ..config import ServeConfig
from ..dispatch import Dispatcher
from .reload import ADMISSION, HEALTH, KNOBS, LOG, OUTLIERS, REQUESTS, Change, check_changes
from .worker_list import WorkerList, check_worker_lists


class LiveSettings:
    """Gives each part of a router its share of a new configuration. `config` is the current one."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        router: KvRouter,
        monitor: HealthMonitor,
        dispatcher: Dispatcher,
        admission: Admission | None,
        workers: WorkerList,
        output: LogOutput | None,
    ) -> None:
        self.config = config
        self._router = router
        self._monitor = monitor
        self._dispatcher = dispatcher
        self._admission = admission
        self._workers = workers
        self._output = output

    def check(self, changes: Sequence[Change], old: ServeConfig, new: ServeConfig) -> None:
        """ConfigError if these changes cannot be made while the router runs."""
        check_changes(changes, old, new, queues=self._admission is not None)
        check_worker_lists(old.workers, new.workers)

    def apply(self, new: ServeConfig, keys: frozenset[str]) -> None:
        """Use the settings of these keys, which were checked, from now on."""
        old, self.config = self.config, new
        if keys.intersection(LOG) and self._output is not None:
            log = new.observability
            self._output.change(log.log_level, log.log_format)
        if keys.intersection(HEALTH):
            self._monitor.set_policy(new.health)
        if keys.intersection(OUTLIERS):
            self._monitor.reports.outliers.policy = new.outliers
        if keys.intersection(REQUESTS):
            self._dispatcher.set_limits(
                new.limits, max_attempts=new.max_attempts, silence_s=new.request_timeout_s
            )
        if keys.intersection((*KNOBS, *ADMISSION)):
            self._change_router(new, keys)
        self._workers.refresh_s = new.dns_refresh_s
        if "workers" in keys:
            self._workers.reconcile(old.workers, new.workers)

    def _change_router(self, new: ServeConfig, keys: frozenset[str]) -> None:
        # Thresholds that are not among the keys may have been set by admin calls since.
        names = [key.rpartition(".")[2] for key in ADMISSION if key in keys]
        changed = {name: getattr(new.router.admission, name) for name in names}
        admission = replace(self._router.limits.config, **changed)
        self._router.change(replace(new.router, admission=admission))
        if self._admission is not None:
            self._admission.queue.limit = admission.queue_limit
            self._admission.poll()
