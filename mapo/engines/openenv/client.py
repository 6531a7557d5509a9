"""The typed client of a served sandbox."""

from __future__ import annotations

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from mapo.engines.openenv.messages import DialogueObservation, DialogueState, PolicyReply


class DialogueClient(EnvClient[PolicyReply, DialogueObservation, DialogueState]):
    """A session with one dialogue at a time.

        with DialogueClient("http://127.0.0.1:8766").sync() as env:
            seen = env.reset(scenario="career-boat-shed", seed=3).observation
            while not seen.done:
                seen = env.step(PolicyReply(reply=answer_to(seen.messages))).observation

    `message_timeout_s` limits how long a step may take; people and judges that are models need a while.
    """

    def __init__(self, base_url: str | None = None, message_timeout_s: float = 600.0, **options: Any) -> None:
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)

    def _step_payload(self, action: PolicyReply) -> dict[str, Any]:
        return {"reply": action.reply}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[DialogueObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done"))
        observation = DialogueObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation, reward, done)

    def _parse_state(self, payload: dict[str, Any]) -> DialogueState:
        return DialogueState(**payload)
