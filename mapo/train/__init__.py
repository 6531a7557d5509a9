"""The local engine: training on one machine with transformers and accelerate."""
