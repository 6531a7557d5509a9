"""The reference model with its layers divided among processes."""

from __future__ import annotations

import torch

from mapo.local_model.layers import decoder_layers
from mapo.train.processes import ProcessGroup


def shard_reference(model: torch.nn.Module, processes: ProcessGroup) -> None:
    """Divide the layers of the reference model among the processes with FSDP2. Then all of them must make the
    same number of forward passes; embeddings and head stay whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.device(processes.device).type, (processes.world_size,))
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
