"""A llama.cpp server for one GGUF file, until killed: python serve.py MODEL.gguf; prints its address."""

from __future__ import annotations

import sys
import threading

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"smollm2"}
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = 4
params.n_ctx = 4 * 8192
params.use_jinja = True
params.warmup = False
params.sampling.penalty_repeat = 1.2  # at temperature 0 so small a model would say one phrase without end
params.sampling.penalty_last_n = 256
server = xllamacpp.Server(params)
sys.stdout.write(f"address {server.listening_address}\n")
sys.stdout.flush()
threading.Event().wait()
