"""The same job on somebody else's trainer: each engine is a room of its own, imported by name."""
