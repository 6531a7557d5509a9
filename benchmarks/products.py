"""Products of few rows on a CPU, by oneDNN and by plain BLAS: why mapo/train/devices.py has `few_rows`.

    .venv/bin/python benchmarks/products.py

Microseconds of x @ W.T in float32, one thread, for the shapes of the embedded model; the two ways take turns
and the fastest of several rounds counts.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

SHAPES = ((192, 192), (512, 192), (192, 512), (4096, 192))
ROWS = (1, 8, 12, 16, 32, 64, 256, 2048)


def microseconds(x: torch.Tensor, weight: torch.Tensor, enabled: bool, calls: int = 40) -> float:
    torch.backends.mkldnn.enabled = enabled
    began = time.perf_counter()
    for _ in range(calls):
        torch.nn.functional.linear(x, weight)
    return (time.perf_counter() - began) / calls * 1e6


@torch.no_grad()
def main() -> None:
    print(f"torch {torch.__version__}, capability {torch.backends.cpu.get_cpu_capability()}")
    print("outputs x inputs  rows   oneDNN    BLAS  oneDNN over BLAS")
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs)
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            rounds = [[microseconds(x, weight, way) for way in (True, False)] for _ in range(5)]
            ours, plain = (min(r[way] for r in rounds) for way in (0, 1))
            print(f"{outputs:7} x {inputs:6} {rows:5} {ours:8.1f} {plain:7.1f} {ours / plain:8.2f}")


if __name__ == "__main__":
    main()
