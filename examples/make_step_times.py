"""Writes step_times.npz, an example of measured step times for `--planner-profile-data`.

python examples/make_step_times.py examples/step_times.npz
dynamo-router mocker --planner-profile-data examples/step_times.npz

The times are those of a simple calculation for a model of 8 billion parameters in 16 bits on one
GPU. A prompt is bound by arithmetic; a token by what is read, the weights and the keys and values
of all before it, and each request of a step costs a little. A profiler's sweeps go into the same
five arrays.
"""

import sys

import numpy as np

PARAMETERS = 8e9
KV_BYTES_PER_TOKEN = 32 * 2 * 8 * 128 * 2  # layers, key and value, heads, size, bytes
ATTENTION_FLOPS_PER_PAIR = 4 * 32 * 4096  # of two tokens of a prompt, over all layers
FLOPS_PER_S = 450e12
BYTES_PER_S = 2.2e12
STEP_OVERHEAD_MS = 2.0
REQUEST_OVERHEAD_MS = 0.02


def step_times() -> dict[str, np.ndarray]:
    """The arrays of the profile: lengths in tokens, times in milliseconds."""
    isl = np.array([16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768], np.float64)
    flops = 2 * PARAMETERS * isl + ATTENTION_FLOPS_PER_PAIR * isl**2 / 2
    active = np.array([256, 4096, 16384, 65536, 262144, 524288], np.float64)
    context = np.array([128, 1024, 4096, 16384, 65536], np.float64)
    read = 2 * PARAMETERS + KV_BYTES_PER_TOKEN * active[:, None]
    requests = np.maximum(1, active[:, None] / context[None, :])
    return {
        "prefill_isl": isl,
        "prefill_ttft_ms": np.round(STEP_OVERHEAD_MS + flops / FLOPS_PER_S * 1e3, 3),
        "decode_active_kv_tokens": active,
        "decode_context_length": context,
        "decode_itl_ms": np.round(
            STEP_OVERHEAD_MS + read / BYTES_PER_S * 1e3 + REQUEST_OVERHEAD_MS * requests, 3
        ),
    }


if __name__ == "__main__":
    np.savez(sys.argv[1], **step_times())
