"""KvRouter: finds the best worker for a prompt, and keeps count of what it sent where.

The library's front: used by the service, by embedding frontends and by simulations. Synchronous,
without I/O, safe to call from several threads. The one place where load is booked and released.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..indexer.event_index import EventIndex
from ..indexer.hashing import BlockMmInfos, Integers, sequence_hashes
from ..runtime.errors import ConfigError, InvalidRequestError
from ..runtime.identity import as_worker
from ..workers.registry import WorkerEntry
from .config import KvRouterConfig
from .policy import Decision, choose
from .prompt import Content, Prompt
from .router_questions import RouterQuestions
from .router_state import WorkerLike


class KvRouter(RouterQuestions):
    """Routes prompts to workers by their caches and their load.

    `registry` may be shared with whoever discovers workers; `clock` and `seed` make a run
    repeatable; a `strategy` decides in place of the mode's. Close it when done: the event index
    has a thread.
    """

    # Workers

    def add_worker(
        self,
        worker_id: int,
        *,
        dp_size: int = 1,
        dp_start: int = 0,
        address: str | None = None,
        total_kv_blocks: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> WorkerEntry:
        """Register a worker, ready for requests, or renew what is known of one."""
        with self._lock:
            return self.registry.add(
                worker_id,
                dp_size=dp_size,
                dp_start=dp_start,
                address=address,
                total_kv_blocks=total_kv_blocks,
                max_num_batched_tokens=max_num_batched_tokens,
            )

    def remove_worker(self, worker_id: int) -> list[str]:
        """Forget a worker, its blocks and its bookings; the ids of the requests it had."""
        with self._lock:
            self._dropped = []
            self.registry.remove(worker_id)
            return self._dropped

    # Events

    def apply_event(self, event: bytes, worker_id: WorkerLike | None = None) -> None:
        """Take one event in: a message of the event plane, or a JSON cache event of `worker_id`.

        The next decision sees it. Raises EventError if it cannot be decoded or, for a JSON event,
        names unknown blocks; ConfigError if this router predicts caches instead of being told.
        """
        index = self.index
        if not isinstance(index, EventIndex):
            raise ConfigError("use_kv_events: off, so events are not taken", key="use_kv_events")
        if worker_id is None:
            index.apply(event)
        else:
            index.apply_cache_event(as_worker(worker_id), event)

    # Decisions

    def best_worker(
        self, token_ids: Integers, request_id: str | None = None, **how: Any
    ) -> tuple[int, int, int]:
        """(worker_id, dp_rank, overlap in blocks) of the best worker; takes what `decide` takes."""
        decision = self.decide(token_ids, request_id, **how)
        return decision.worker.worker_id, decision.worker.dp_rank, decision.overlap_blocks

    def decide(
        self,
        token_ids: Integers,
        request_id: str | None = None,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: BlockMmInfos | None = None,
        allowed_workers: Iterable[WorkerLike] | None = None,
        excluded_workers: Collection[WorkerLike] = (),
        pinned_worker: WorkerLike | None = None,
        expected_output_tokens: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Decision:
        """Choose a worker, and with a `request_id` book the request on it until `free`.

        `overrides` are KvRouterConfig fields for this request alone. An int in `allowed_workers`
        or `excluded_workers` stands for all ranks of a worker, in `pinned_worker` for rank 0.
        Raises InvalidRequestError for a prompt or an id that cannot be served, NoWorkersError
        where no worker may take the request now.
        """
        config, how, temperature = self._how(overrides)
        content = Content(block_mm_infos, lora_name, cache_namespace)
        prompt = self._prompt(token_ids, content, how, config)
        with self._lock:
            now = self._clock.now()
            self._expire(now)
            if request_id is not None and self._slots.worker_of(request_id) is not None:
                raise InvalidRequestError(
                    f"request id {request_id!r} is in use", field="request_id"
                )
            overlaps = self._match(prompt)
            eligible = self.registry.eligible(now)
            if excluded_workers:
                eligible = eligible & ~self._mask(excluded_workers)
            candidates = self._candidates(prompt, overlaps, eligible, now, config)
            number = choose(
                how,
                candidates,
                self._rng,
                allowed=None if allowed_workers is None else self._mask(allowed_workers),
                pinned=self._pin(pinned_worker),
                busy=self.limits.busy() if self.limits.any_busy else None,
                temperature=temperature,
            )
            overlap = 0 if overlaps.device is None else int(overlaps.device[number])
            saved = candidates.saved_prefill_blocks
            saved_blocks = 0 if saved is None else int(saved[number])
            host, disk = 0, 0
            if overlaps.host is not None and overlaps.disk is not None:
                host, disk = int(overlaps.host[number]), int(overlaps.disk[number])
            worker = self.registry.worker(number)
            if request_id is not None:
                booked = self._book(
                    request_id, number, prompt, saved_blocks, now, expected_output_tokens, config
                )
                if booked:
                    self._policy.on_booked(request_id, number, candidates)
                if prompt.local is not None and self.index.predicts:
                    self.index.record(worker, prompt.local, sequence_hashes(prompt.local), now)
        return Decision(
            worker=worker,
            number=number,
            overlap_blocks=overlap,
            request_blocks=-(-prompt.isl // self.block_size),
            cached_tokens=min(overlap * self.block_size, prompt.isl),
            request_id=request_id,
            host_overlap_blocks=host,
            disk_overlap_blocks=disk,
        )

    # Requests in flight

    def mark_prefill_complete(self, request_id: str) -> bool:
        """The first token is out. False if the request is not booked, which is no error."""
        with self._lock:
            self._policy.on_first_token(request_id, self._clock.now())
            return self._slots.mark_prefill_completed(request_id)

    def add_output_tokens(self, request_id: str, generated: int) -> None:
        """`generated` tokens are out in all. Counts where output blocks are tracked."""
        if self.config.router_track_output_blocks:
            with self._lock:
                self._slots.add_output_tokens(request_id, generated)

    def touch(self, request_id: str) -> bool:
        """The request is alive: it expires `active_request_expiry_secs` from now."""
        with self._lock:
            return self._slots.touch(request_id, self._clock.now())

    def free(self, request_id: str, *, output_tokens: int | None = None) -> bool:
        """The request ended, however it did. False if it is not booked, which is no error.

        `output_tokens`, where somebody has counted them, tells a policy how long a token takes.
        """
        with self._lock:
            self._policy.on_end(request_id, self._clock.now(), output_tokens)
            return self._slots.free(request_id)

    # Inside

    def _book(
        self,
        request_id: str,
        number: int,
        prompt: Prompt,
        saved_blocks: int,
        now: float,
        expected_output_tokens: int | None,
        config: KvRouterConfig,
    ) -> bool:
        return self._slots.add_request(
            request_id,
            number,
            prompt.sequence,
            isl=prompt.isl,
            overlap_blocks=saved_blocks,
            now=now,
            expected_output_tokens=expected_output_tokens,
            track_prefill=config.router_track_prefill_tokens,
        )
