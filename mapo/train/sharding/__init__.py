"""Training state divided among processes (`run.shard`).

Training in bfloat16 takes 22 bytes per parameter: 2 each for weight, gradient and reference, and 16 for the
float32 weight, gradient and moments. Every GPU samples, so it needs all weights. The rest is divided: of each
parameter, flattened, process k keeps the k-th piece.

- Gradients are collected in buckets during the backward pass. A full bucket is summed over the processes in
  float32, each of which receives its own pieces, while the backward pass continues.
- After an optimizer step the new weights are gathered into the model in place, because recorded CUDA graphs
  point at them.
- The layers of the reference are divided with FSDP2 and gathered one at a time in its forward pass.

FSDP2 is not used for the policy: its modules gather weights in hooks and free them again, so recorded CUDA
graphs would point at freed memory, and the sampler would need a second copy of the weights.
"""
