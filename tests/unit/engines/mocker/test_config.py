"""Settings of mock engines: bounds that hold by construction, and errors that name the key."""

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.process.settings import resolve
from dynamo_router.workers.records import DiscoveryConfig


@pytest.mark.parametrize(
    ("cls", "key", "value"),
    [
        (EngineConfig, "block_size", 0),
        (EngineConfig, "num_gpu_blocks", -1),
        (EngineConfig, "max_num_seqs", 0),
        (EngineConfig, "max_num_batched_tokens", 0),
        (EngineConfig, "max_waiting", 0),
        (EngineConfig, "max_model_len", 1),
        (EngineConfig, "watermark", 1.0),
        (EngineConfig, "watermark", float("nan")),
        (EngineConfig, "num_gpu_blocks", 2**31),
        (EngineConfig, "engine_type", "trtllm"),
        (EngineConfig, "preemption_mode", "oldest"),
        (EngineConfig, "dp_size", 0),
        (EngineConfig, "dp_size", 5000),
        (EngineConfig, "startup_time_s", -0.1),
        (EngineConfig, "startup_time_s", float("inf")),
        (EngineConfig, "planner_profile_data", "/no/such/file"),
        (EngineConfig, "vocab_size", 1),
        (EngineConfig, "vocab_size", 2**32 + 1),
        (EngineConfig, "eos_token_id", (2, -1)),
        (EngineConfig, "decode_speedup_ratio", 0.0),
        (EngineConfig, "decode_scale_tokens", 0),
        (EngineConfig, "attention_us_per_ktoken2", -1.0),
        (MockerConfig, "workers", 0),
        (MockerConfig, "port", 65536),
        (MockerConfig, "speedup_ratio", 0.0),
        (MockerConfig, "speedup_ratio", float("inf")),
        (MockerConfig, "worker_speeds", "1,nan"),
        (MockerConfig, "worker_speeds", "1,,2"),
        (MockerConfig, "worker_speeds", "-1"),
        (MockerConfig, "heartbeat_s", -1.0),
        (MockerConfig, "heartbeat_s", float("inf")),
        (MockerConfig, "fault_port", 65536),
        (MockerConfig, "drain_timeout_s", -1.0),
        (MockerConfig, "worker_id", 2**64),
        (MockerConfig, "endpoint", ""),
    ],
)
def test_a_value_out_of_range_names_its_key(cls, key, value):
    with pytest.raises(ConfigError, match=f"^{key}: ") as caught:
        cls(**{key: value})
    assert caught.value.key == key


def test_the_last_port_and_id_must_exist_too():
    MockerConfig(port=65534, workers=2)
    with pytest.raises(ConfigError, match="port"):
        MockerConfig(port=65534, workers=3)
    with pytest.raises(ConfigError, match="worker_id"):
        MockerConfig(worker_id=2**64 - 1, workers=2)


def test_a_pod_is_one_instance():
    discovery = DiscoveryConfig(discovery="kubernetes")
    MockerConfig(discovery=discovery)
    with pytest.raises(ConfigError, match="workers: a pod is one instance"):
        MockerConfig(workers=2, discovery=discovery)


def test_the_longest_sequence_is_one_that_can_finish():
    config = EngineConfig(block_size=4, num_gpu_blocks=10)
    assert (config.max_seq_len, config.max_input_len) == (40, 39)
    assert EngineConfig(block_size=4, num_gpu_blocks=10, max_model_len=20).max_seq_len == 20
    assert EngineConfig(block_size=4, num_gpu_blocks=10, max_model_len=99).max_seq_len == 40
    assert config.length_key == "num_gpu_blocks"
    assert EngineConfig(max_model_len=20).length_key == "max_model_len"
    assert EngineConfig(enable_chunked_prefill=False).length_key == "max_num_batched_tokens"
    with pytest.raises(ConfigError, match="num_gpu_blocks: the cache must hold 2 tokens"):
        EngineConfig(block_size=1, num_gpu_blocks=1)


def test_settings_of_the_engine_are_a_section_of_the_mocker():
    flags = {"workers": 3, "engine.block_size": "16"}
    resolved = resolve(MockerConfig, flags, environ={"DYNAMO_ROUTER_SPEEDUP_RATIO": "8"})
    config = resolved.config
    assert (config.workers, config.engine.block_size, config.speedup_ratio) == (3, 16, 8.0)
