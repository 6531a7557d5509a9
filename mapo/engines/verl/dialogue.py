"""The agent loop: our own `play_all()` with verl's token server as the policy.

User, director, judge, faults, unscored turns and records are those of the local engine, because it is the
same code. A dialogue that broke gives verl no row: its siblings go on without it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from mapo.engines.verl.row import Row, row_of
from mapo.engines.verl.site import site_of
from mapo.errors import EndpointError, InputError
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.tokens import Context
from mapo.sandbox.rollout import play_all
from mapo.store import RunDir, write_stop_reason
from mapo.types import Dialogue


class TokenPolicy:
    """The policy of one dialogue, a `Chat`: ids to verl's server, ids back."""

    def __init__(self, server: Any, context: Context, name: str, session: str) -> None:
        self.server, self.context, self.name, self.session = server, context, name, session
        self.versions: dict[str, Any] = {}
        self.seconds = 0.0

    async def reply(self, request: Request) -> Answer:
        prompt = self.context.prompt(request.messages, request.max_tokens)
        began = time.monotonic()
        out = await self.server.generate(
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
        self.versions.setdefault("min_global_steps", out.extra_fields.get("min_global_steps"))
        self.versions["max_global_steps"] = out.extra_fields.get("max_global_steps")
        if not out.token_ids:
            raise EndpointError("the token server gave no token", where=self.session)
        if out.log_probs is None or len(out.log_probs) != len(out.token_ids):
            raise InputError("the token server gave no log-probabilities", where=self.session)
        reply = self.context.reply(prompt, out.token_ids, out.log_probs)
        return Answer(reply, usage=Usage(len(prompt.ids), 0, len(out.token_ids)))


class TurnRewards(AgentLoopOutput):  # type: ignore[misc]
    """verl writes one number on a row's last token; here every turn has its own."""

    token_rewards: list[float]

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = super().as_dict()
        found.pop("token_rewards", None)
        found["rm_scores"] = torch.tensor(self.token_rewards, dtype=torch.float32)
        return found


class DialogueLoop(AgentLoopBase):  # type: ignore[misc]
    """One dialogue. `run_dir` is the run directory, from the settings verl was started with."""

    def __init__(self, *given: Any, run_dir: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.run_dir = Path(run_dir)
        self.model = str(self.config.actor_rollout_ref.model.path)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        del sampling_params  # the same as ours, which come with each request
        try:
            return await self._played(row)
        except Exception as problem:
            write_stop_reason(RunDir(self.run_dir), problem, keep_first=True)
            raise

    async def _played(self, row: dict[str, Any]) -> Any:
        site = await site_of(self.run_dir, self.tokenizer, self.model)
        told, step = row["extra_info"], int(row["global_steps"])
        group = f"{row['uid'][:8]}_{told['scenario']}"
        job = site.job(told["scenario"], told["split"], step, group, int(row["session_id"]))
        longest = self.rollout_config.prompt_length + self.rollout_config.response_length
        policy = TokenPolicy(
            self.server_manager,
            Context(site.template, site.end_ids, longest, job.id),
            Path(self.model).name,
            f"{row['uid']}/{row['session_id']}",
        )
        async with site.gate:
            rules = site.rules_for(told["split"])
            seen = site.watch(told["split"], step).update
            [dialogue] = await play_all(
                [job], lambda _: policy, site.casting, rules, max_unscored=1.0, on_turn=seen
            )  # the site's watch sees all dialogues, so the one in play_all is off
            site.keep(dialogue, told["split"], step)
        found = row_of(dialogue)
        return output_of(found, dialogue, policy) if found else []


def output_of(row: Row, dialogue: Dialogue, policy: TokenPolicy) -> TurnRewards:
    rewards = [turn.reward for turn in dialogue.turns if turn.reward is not None]
    turns, others = len(dialogue.turns), (dialogue.seconds or 0.0) - policy.seconds
    return TurnRewards(
        prompt_ids=row.prompt,
        response_ids=row.response,
        response_mask=row.mask,
        response_logprobs=row.logprobs,
        token_rewards=row.rewards,
        reward_score=float(sum(rewards)),
        num_turns=turns,
        metrics=AgentLoopMetrics(generate_sequences=policy.seconds, tool_calls=max(0.0, others)),
        extra_fields={
            **policy.versions,
            "reward_extra_info": {"turns": turns, "unscored": turns - len(rewards)},
        },
    )
