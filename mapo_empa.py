"""The sandbox under the name by which verifiers finds it: mapo-empa (see `mapo.engines.verifiers`)."""

from mapo.engines.verifiers import EmpaEnv, EmpaHarness, EmpaTaskset

__all__ = ["EmpaEnv", "EmpaHarness", "EmpaTaskset"]
