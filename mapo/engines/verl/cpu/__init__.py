"""verl on CPUs, for tests: no card, gloo between the ranks, our own sampler as the token server.

verl has no such platform. VERL_PLATFORM=cpu makes our plugin install this one, which tells verl what it wants
to know of a device and bends the three places where it takes an accelerator for granted. Everything else
(Ray, FSDP2, the trainer, the queue between its parts, checkpoints) is verl's own and runs as on a cluster.
Not for production: it is as slow as CPUs are.
"""
