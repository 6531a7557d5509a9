"""A CPU platform for verl, for tests: gloo between the ranks and mapo's sampler as the token server.

verl has no CPU platform. With VERL_PLATFORM=cpu the plugin installs this one, which implements verl's device
interface and patches the three places where verl assumes an accelerator. Everything else (Ray, FSDP2, the
trainer, the transfer queue, checkpoints) is verl's own code and runs as on a cluster.
Too slow for production.
"""
