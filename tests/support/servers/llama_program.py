"""llama.cpp's own HTTP server, as a program: MODEL.gguf PORT SLOTS CONTEXT."""

import signal
import sys

import xllamacpp

model, port, slots, context = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.port = int(port)
params.n_parallel = int(slots)
params.n_ctx = int(context) * int(slots)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = False
server = xllamacpp.Server(params)
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
