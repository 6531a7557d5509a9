"""The sandbox as an OpenEnv environment: other trainers sample the policy, the server plays everyone else.

`mapo serve` starts the server (`server.py`, `environment.py`); `DialogueClient` (`client.py`) talks to it.
`trl.py` connects TRL's trainers to it. docs/openenv.md describes the use.
"""

from __future__ import annotations

from mapo.engines.openenv.client import DialogueClient
from mapo.engines.openenv.messages import DialogueObservation, DialogueState, PolicyReply

__all__ = ["DialogueClient", "DialogueObservation", "DialogueState", "PolicyReply"]
