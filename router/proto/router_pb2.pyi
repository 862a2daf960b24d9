# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Worker(_message.Message):
    __slots__ = ("worker_id", "dp_rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    dp_rank: int
    def __init__(self, worker_id: _Optional[int] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class SelectWorkerRequest(_message.Message):
    __slots__ = ("token_ids", "request_id", "lora_name", "cache_namespace", "allowed_worker_ids", "pinned_worker", "expected_output_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    PINNED_WORKER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    lora_name: str
    cache_namespace: str
    allowed_worker_ids: _containers.RepeatedScalarFieldContainer[int]
    pinned_worker: Worker
    expected_output_tokens: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ..., lora_name: _Optional[str] = ..., cache_namespace: _Optional[str] = ..., allowed_worker_ids: _Optional[_Iterable[int]] = ..., pinned_worker: _Optional[_Union[Worker, _Mapping]] = ..., expected_output_tokens: _Optional[int] = ...) -> None: ...

class SelectWorkerResponse(_message.Message):
    __slots__ = ("worker", "address", "overlap_blocks", "request_blocks", "cached_tokens", "booked", "host_overlap_blocks", "disk_overlap_blocks")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BOOKED_FIELD_NUMBER: _ClassVar[int]
    HOST_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DISK_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    address: str
    overlap_blocks: int
    request_blocks: int
    cached_tokens: int
    booked: bool
    host_overlap_blocks: int
    disk_overlap_blocks: int
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., address: _Optional[str] = ..., overlap_blocks: _Optional[int] = ..., request_blocks: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., booked: _Optional[bool] = ..., host_overlap_blocks: _Optional[int] = ..., disk_overlap_blocks: _Optional[int] = ...) -> None: ...

class OverlapRequest(_message.Message):
    __slots__ = ("token_ids", "lora_name", "cache_namespace")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    lora_name: str
    cache_namespace: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., lora_name: _Optional[str] = ..., cache_namespace: _Optional[str] = ...) -> None: ...

class OverlapResponse(_message.Message):
    __slots__ = ("overlaps", "block_size")
    class Overlap(_message.Message):
        __slots__ = ("worker", "blocks", "host_blocks", "disk_blocks", "external_blocks")
        WORKER_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_FIELD_NUMBER: _ClassVar[int]
        HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        EXTERNAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        worker: Worker
        blocks: int
        host_blocks: int
        disk_blocks: int
        external_blocks: int
        def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., blocks: _Optional[int] = ..., host_blocks: _Optional[int] = ..., disk_blocks: _Optional[int] = ..., external_blocks: _Optional[int] = ...) -> None: ...
    OVERLAPS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    overlaps: _containers.RepeatedCompositeFieldContainer[OverlapResponse.Overlap]
    block_size: int
    def __init__(self, overlaps: _Optional[_Iterable[_Union[OverlapResponse.Overlap, _Mapping]]] = ..., block_size: _Optional[int] = ...) -> None: ...

class PotentialLoadsRequest(_message.Message):
    __slots__ = ("token_ids", "lora_name", "cache_namespace")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    lora_name: str
    cache_namespace: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., lora_name: _Optional[str] = ..., cache_namespace: _Optional[str] = ...) -> None: ...

class PotentialLoadsResponse(_message.Message):
    __slots__ = ("loads",)
    class PotentialLoad(_message.Message):
        __slots__ = ("worker", "decode_blocks", "prefill_tokens")
        WORKER_FIELD_NUMBER: _ClassVar[int]
        DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
        worker: Worker
        decode_blocks: int
        prefill_tokens: int
        def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., decode_blocks: _Optional[int] = ..., prefill_tokens: _Optional[int] = ...) -> None: ...
    LOADS_FIELD_NUMBER: _ClassVar[int]
    loads: _containers.RepeatedCompositeFieldContainer[PotentialLoadsResponse.PotentialLoad]
    def __init__(self, loads: _Optional[_Iterable[_Union[PotentialLoadsResponse.PotentialLoad, _Mapping]]] = ...) -> None: ...

class BookedRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class BookingResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "address", "state", "indexed_blocks", "active_blocks", "active_prefill_tokens", "active_requests", "event_source_state", "reason", "host_blocks", "disk_blocks", "external_blocks", "weight")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INDEXED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EVENT_SOURCE_STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    address: str
    state: str
    indexed_blocks: int
    active_blocks: int
    active_prefill_tokens: int
    active_requests: int
    event_source_state: str
    reason: str
    host_blocks: int
    disk_blocks: int
    external_blocks: int
    weight: float
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., indexed_blocks: _Optional[int] = ..., active_blocks: _Optional[int] = ..., active_prefill_tokens: _Optional[int] = ..., active_requests: _Optional[int] = ..., event_source_state: _Optional[str] = ..., reason: _Optional[str] = ..., host_blocks: _Optional[int] = ..., disk_blocks: _Optional[int] = ..., external_blocks: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class AddWorkerRequest(_message.Message):
    __slots__ = ("url", "weight")
    URL_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    url: str
    weight: float
    def __init__(self, url: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "deadline_s")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    deadline_s: float
    def __init__(self, worker_id: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class RemoveWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "force")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    force: bool
    def __init__(self, worker_id: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class SetWorkerWeightRequest(_message.Message):
    __slots__ = ("worker_id", "weight")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    weight: float
    def __init__(self, worker_id: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class WorkerChange(_message.Message):
    __slots__ = ("worker_id", "address", "state", "weight", "in_flight", "reason", "warning")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    address: str
    state: str
    weight: float
    in_flight: int
    reason: str
    warning: str
    def __init__(self, worker_id: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., weight: _Optional[float] = ..., in_flight: _Optional[int] = ..., reason: _Optional[str] = ..., warning: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("token_ids", "lora_name", "cache_namespace")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    lora_name: str
    cache_namespace: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., lora_name: _Optional[str] = ..., cache_namespace: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("cheapest", "candidates", "json")
    CHEAPEST_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    cheapest: _containers.RepeatedCompositeFieldContainer[Worker]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    json: str
    def __init__(self, cheapest: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., json: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("worker", "cost", "overlap_blocks", "prefill_blocks", "effective_overlap_blocks", "decode_blocks", "active_requests", "eligible", "reason", "event_source_state", "host_overlap_blocks", "disk_overlap_blocks", "dynamo_cost", "policy_terms")
    class PolicyTermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENT_SOURCE_STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DISK_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DYNAMO_COST_FIELD_NUMBER: _ClassVar[int]
    POLICY_TERMS_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    cost: float
    overlap_blocks: int
    prefill_blocks: float
    effective_overlap_blocks: float
    decode_blocks: float
    active_requests: int
    eligible: bool
    reason: str
    event_source_state: str
    host_overlap_blocks: int
    disk_overlap_blocks: int
    dynamo_cost: float
    policy_terms: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., cost: _Optional[float] = ..., overlap_blocks: _Optional[int] = ..., prefill_blocks: _Optional[float] = ..., effective_overlap_blocks: _Optional[float] = ..., decode_blocks: _Optional[float] = ..., active_requests: _Optional[int] = ..., eligible: _Optional[bool] = ..., reason: _Optional[str] = ..., event_source_state: _Optional[str] = ..., host_overlap_blocks: _Optional[int] = ..., disk_overlap_blocks: _Optional[int] = ..., dynamo_cost: _Optional[float] = ..., policy_terms: _Optional[_Mapping[str, float]] = ...) -> None: ...
