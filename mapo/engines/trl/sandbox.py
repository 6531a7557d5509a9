"""The sandbox as a TRL rollout function: `play_all`, with TRL's model sampled by mapo's sampler.

The trainer receives exactly the tokens that were sampled. The KV cache is kept across turns. Roles, scoring
and error handling are those of the local engine: unscored turns and broken dialogues are missing data, and
the run stops when the judge fails too often.

A dialogue's random numbers depend on the seed, the step and its index in the batch of all processes, so the
dialogues do not depend on the number of processes.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from mapo.engines.trl.contract import rollout_of
from mapo.errors import InputError
from mapo.local_model.template import Template, read_template
from mapo.measure.reward import RANK
from mapo.models.endpoint import Endpoint
from mapo.sampling.sampler import Sampler
from mapo.sampling.tokens import longest_dialogue
from mapo.sandbox.cast import Casting, Job, held_out_seed, world_seed
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue

_T = TypeVar("_T")


def scenario_rows(scenarios: Iterable[Scenario]) -> Any:
    """Return a dataset with one row per scenario: its id in `scenario` and its opening in `prompt`."""
    from datasets import Dataset

    members = list(scenarios)
    prompts = [[{"role": "user", "content": s.opening}] for s in members]
    return Dataset.from_dict({"prompt": prompts, "scenario": [s.id for s in members]})


class Sandbox:
    """The `rollout_func` of one MAPOTrainer: plays the scenarios named in the rows of a dataset.

    scenarios     every scenario that a row may name
    rules         how dialogues are played; the temperature is taken from the trainer
    context       token limit of a dialogue; None means 8192, or less if the model's context is shorter
    at_once       number of dialogues played concurrently in one process
    max_unscored  the run stops when a larger share of a batch's turns is unscored
    on_done       called with every finished dialogue, in another thread
    stream        sample with streamed weights if model and GPU support it
    """

    def __init__(
        self,
        scenarios: Iterable[Scenario],
        casting: Casting,
        rules: Rules,
        *,
        context: int | None = None,
        at_once: int = 64,
        max_unscored: float = 0.5,
        on_done: Callable[[Dialogue], None] | None = None,
        stream: bool = True,
    ) -> None:
        self.scenarios = {scenario.id: scenario for scenario in scenarios}
        self.casting, self.rules, self.context = casting, rules, context
        self.at_once, self.max_unscored, self.on_done, self.stream = at_once, max_unscored, on_done, stream
        self._template: Template | None = None
        self._sampler: Sampler | None = None
        self._max_tokens = 0
        self._last_batch = (-1, 0)
        self._loop = _BackgroundLoop()

    def begin(self, trainer: Any) -> None:
        """Check the trainer's settings, model and chat template before anything is played."""
        _check_sampling(trainer)
        if self.rules.reward == RANK:
            raise InputError(
                "this trainer has no ranking judge",
                where="the reward 'rank'",
                fix="Use another reward, or the local engine (mapo train)",
            )
        template = read_template(trainer.processing_class, **trainer.chat_template_kwargs)
        if not template.append_only:
            raise InputError(
                "the chat template rewrites earlier turns, but TRL needs one row of tokens per dialogue",
                where=str(trainer.processing_class.name_or_path),
                fix="Use a chat template that only appends, or the local engine (mapo train)",
            )
        model_limit = getattr(trainer.model.config, "max_position_embeddings", None)
        name = str(trainer.processing_class.name_or_path)
        self._max_tokens = longest_dialogue(self.context, model_limit, name, "context")
        self._template, self._sampler = template, None

    def __call__(self, _prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play the batch's dialogues. Prompts are ignored: a dialogue starts with its scenario's opening."""
        model, training = trainer.model, trainer.model.training
        jobs = self.jobs(trainer, trainer.rows, training=training)
        if self._sampler is None:
            assert self._template is not None, "MAPOTrainer calls begin"
            name = str(model.config._name_or_path).rstrip("/").split("/")[-1] or "policy"
            self._sampler = Sampler(
                model,
                self._template,
                name=name,
                slots=self.at_once,
                context=self._max_tokens,
                stream=self.stream,
            )
        try:
            dialogues = self._loop.run(self._play(self._sampler, jobs, trainer.temperature))
        finally:
            model.train(training)  # sampling disables dropout
        rollout = rollout_of(dialogues, filler=trainer.processing_class.pad_token_id)
        return {**rollout, **trainer.args.credit_inputs(dialogues, self.rules.rubric)}

    def disconnect(self, *endpoints: Endpoint) -> None:
        """Close the connections of endpoints that played roles. A later call opens new ones."""
        for endpoint in endpoints:
            self._loop.run(endpoint.aclose())

    async def _play(self, sampler: Sampler, jobs: list[Job], temperature: float) -> list[Dialogue]:
        sampler.forget_all()  # the weights changed after the last batch
        async with sampler:
            return await play_all(
                jobs,
                sampler.policy,
                self.casting,
                replace(self.rules, temperature=temperature),
                concurrency=self.at_once,
                max_unscored=self.max_unscored,
                on_done=self.on_done,
            )

    def jobs(self, trainer: Any, rows: list[dict[str, Any]], *, training: bool) -> list[Job]:
        """Return the jobs of this process.

        Siblings share a seed that changes with every step. Evaluations use the same seeds every time, so that
        steps can be compared.
        """
        step, seed = trainer.state.global_step, trainer.args.seed
        siblings = trainer.num_generations if training else trainer.num_generations_eval
        kind = self._batch_number(step) if training else "eval"
        jobs = []
        for index, row in enumerate(rows, trainer.accelerator.process_index * len(rows)):
            scenario = self._scenario(row)
            number, k = divmod(index, siblings)
            group = f"{kind}_{number:03d}_{scenario.id}"
            job_seed = world_seed(seed, step + 1) if training else held_out_seed(seed, k + 1)
            job_step = step + 1 if training else None
            jobs.append(Job(scenario, f"{group}_{k}", group, seed=job_seed, step=job_step))
        return jobs

    def _batch_number(self, step: int) -> int:
        """Return the number of this batch within its step, from 0."""
        last_step, number = self._last_batch
        self._last_batch = (step, number + 1 if last_step == step else 0)
        return self._last_batch[1]

    def _scenario(self, row: dict[str, Any]) -> Scenario:
        name = row.get("scenario")
        if name not in self.scenarios:
            raise InputError(
                f"the Sandbox has no scenario {name!r}",
                where="the dataset's column `scenario`",
                fix="Pass the Sandbox every scenario that a row names; scenario_rows() makes the dataset",
            )
        return self.scenarios[name]


def _check_sampling(trainer: Any) -> None:
    """Raise InputError for sampling settings the Sandbox does not support."""
    args = trainer.args
    supported = {"use_vllm": False, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    for name, value in supported.items():
        if (getattr(args, name) or value) != value:
            raise InputError(
                f"{name} is {getattr(args, name)}, which the Sandbox does not support",
                fix=f"Leave {name} at its default; the Sandbox samples with `temperature` only",
            )
    if not args.temperature > 0:
        raise InputError(
            f"temperature is {args.temperature}", fix="Use a value above 0: training needs sampled tokens"
        )
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise InputError(
            "the model is sharded over processes, but the Sandbox needs the full model in each process",
            fix="Use plain data parallelism (accelerate launch), or write a rollout_func with vLLM",
        )


class _BackgroundLoop:
    """An event loop in a background thread that lives across batches.

    Connections to endpoints stay open between batches, and it works inside a notebook's running event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
        thread.start()
        weakref.finalize(self, _stop, self._loop, thread)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # do not leave dialogues running after an interrupt
            raise


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
