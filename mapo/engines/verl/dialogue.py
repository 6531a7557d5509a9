"""The agent loop: `play_all()` with verl's token server as the policy.

User, director, judge, error handling, unscored turns and records are the same code as in the local engine. A
broken dialogue gives verl no row; its siblings continue without it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from mapo.credit import credit_inputs
from mapo.engines.verl.row import ResponseRow, response_row
from mapo.engines.verl.worker import get_worker
from mapo.errors import EndpointError, InputError
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.tokens import Context
from mapo.sandbox.rollout import play_all
from mapo.store import RunDir, write_stop_reason
from mapo.types import Dialogue


class TokenPolicy:
    """The policy of one dialogue, a `Chat` that exchanges token ids with verl's server."""

    def __init__(self, server: Any, context: Context, name: str, session: str) -> None:
        self.server, self.context, self.name, self.session = server, context, name, session
        self.versions: dict[str, Any] = {}
        self.seconds = 0.0

    async def reply(self, request: Request) -> Answer:
        prompt = self.context.prompt(request.messages, request.max_tokens)
        began = time.monotonic()
        output = await self.server.generate(
            request_id=self.session,
            prompt_ids=prompt.ids,
            sampling_params={
                "temperature": request.temperature,
                "top_p": request.top_p,
                "max_tokens": request.max_tokens,
                "stop_token_ids": sorted(self.context.end_ids),
                "logprobs": True,
            },
        )
        self.seconds += time.monotonic() - began
        self.versions.setdefault("min_global_steps", output.extra_fields.get("min_global_steps"))
        self.versions["max_global_steps"] = output.extra_fields.get("max_global_steps")
        if not output.token_ids:
            raise EndpointError("the token server returned no tokens", where=self.session)
        if output.log_probs is None or len(output.log_probs) != len(output.token_ids):
            raise InputError("the token server returned no log-probabilities", where=self.session)
        reply = self.context.reply(prompt, output.token_ids, output.log_probs)
        return Answer(reply, usage=Usage(len(prompt.ids), 0, len(output.token_ids)))


class TurnRewards(AgentLoopOutput):  # type: ignore[misc]
    """Agent loop output with a reward per turn. verl's own has one number, on the last token of the row."""

    token_rewards: list[float]

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().as_dict()
        fields.pop("token_rewards", None)
        fields["rm_scores"] = torch.tensor(self.token_rewards, dtype=torch.float32)
        return fields


class DialogueLoop(AgentLoopBase):  # type: ignore[misc]
    """The agent loop of one dialogue. `run_dir` comes from the settings verl was started with."""

    def __init__(self, *args: Any, run_dir: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.run_dir = Path(run_dir)
        self.model = str(self.config.actor_rollout_ref.model.path)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        del sampling_params  # each request carries its own
        try:
            return await self._play(row)
        except Exception as error:
            write_stop_reason(RunDir(self.run_dir), error, keep_first=True)
            raise

    async def _play(self, row: dict[str, Any]) -> Any:
        worker = await get_worker(self.run_dir, self.tokenizer, self.model)
        info, step = row["extra_info"], int(row["global_steps"])
        scenario, split = info["scenario"], info["split"]
        group = f"{row['uid'][:8]}_{scenario}"
        job = worker.job(scenario, split, step, group, int(row["session_id"]))
        max_tokens = self.rollout_config.prompt_length + self.rollout_config.response_length
        policy = TokenPolicy(
            self.server_manager,
            Context(worker.template, worker.end_ids, max_tokens, job.id),
            Path(self.model).name,
            f"{row['uid']}/{row['session_id']}",
        )
        async with worker.semaphore:
            [dialogue] = await play_all(
                [job],
                lambda _: policy,
                worker.casting,
                worker.rules_for(split),
                max_unscored=1.0,  # the worker's monitor sees all dialogues and replaces this check
                on_turn=worker.monitor(split, step).update,
            )
            worker.record(dialogue, split, step)
        response = response_row(dialogue)
        inputs = credit_inputs([dialogue], worker.config.advantage, worker.rules.rubric)
        return loop_output(response, dialogue, policy, inputs) if response else []


def loop_output(
    row: ResponseRow, dialogue: Dialogue, policy: TokenPolicy, inputs: dict[str, Any]
) -> TurnRewards:
    """Return a played dialogue in the form verl expects, with the `inputs` that the estimator needs."""
    rewards = [turn.reward for turn in dialogue.turns if turn.reward is not None]
    turns, role_seconds = len(dialogue.turns), (dialogue.seconds or 0.0) - policy.seconds
    return TurnRewards(
        prompt_ids=row.prompt,
        response_ids=row.response,
        response_mask=row.mask,
        response_logprobs=row.logprobs,
        token_rewards=row.rewards,
        reward_score=float(sum(rewards)),
        num_turns=turns,
        metrics=AgentLoopMetrics(generate_sequences=policy.seconds, tool_calls=max(0.0, role_seconds)),
        extra_fields={
            **policy.versions,
            "credit_inputs": inputs,
            "reward_extra_info": {"turns": turns, "unscored": turns - len(rewards)},
        },
    )
