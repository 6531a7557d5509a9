"""The sandbox as TRL's rollout: our own `play_all`, with TRL's model sampled by our own sampler.

The tokens the trainer gets are those that were sampled, with the cache kept across turns. Who plays user,
director and judge, how turns are scored and what happens when something fails is as in the local engine:
unscored turns and broken dialogues are missing data, and a judge that fails too often stops the run.

A dialogue's chance follows from the seed, the step and its place in the batch of all processes, so two
processes play what one would have played.
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
from mapo.models.endpoint import Endpoint
from mapo.sampling.sampler import Sampler
from mapo.sampling.tokens import longest_dialogue
from mapo.sandbox.cast import Casting, Job, held_out_seed, world_seed
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue

_T = TypeVar("_T")


def scenario_rows(scenarios: Iterable[Scenario]) -> Any:
    """A dataset with one row a scenario: `scenario`, its id, and `prompt`, what the person says first."""
    from datasets import Dataset

    found = list(scenarios)
    opening = [[{"role": "user", "content": s.opening}] for s in found]
    return Dataset.from_dict({"prompt": opening, "scenario": [s.id for s in found]})


class Sandbox:
    """Plays the scenarios that a dataset's rows name; the `rollout_func` of one MAPOTrainer.

    `scenarios` are all that any row may name, `rules` how they are played (the temperature is the trainer's).
    `context` is the longest dialogue in tokens (None: 8192, or all the model reads), `at_once` how many are
    played at a time in one process. The run stops when more than `max_unscored` of a batch's turns have no
    judgement. `on_done` gets every dialogue as it ends, in a thread of its own. `stream`: sample with
    streamed weights where model and card are made for them.
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
        self._longest = 0
        self._played = (-1, 0)
        self._loop = _Loop()

    def begin(self, trainer: Any) -> None:
        """Refuse, before anything is played, what could not be played or learnt from."""
        _check_sampling(trainer)
        template = read_template(trainer.processing_class, **trainer.chat_template_kwargs)
        if not template.append_only:
            raise InputError(
                "its chat template rewrites earlier turns, and TRL takes one row of tokens a dialogue",
                where=str(trainer.processing_class.name_or_path),
                fix="Set a chat template that only appends, or use the local engine (mapo train)",
            )
        reads = getattr(trainer.model.config, "max_position_embeddings", None)
        name = str(trainer.processing_class.name_or_path)
        self._longest = longest_dialogue(self.context, reads, name, "context")
        self._template, self._sampler = template, None

    def __call__(self, _prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """The batch's dialogues, as the trainer takes them; what is said first is the scenario's."""
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
                context=self._longest,
                stream=self.stream,
            )
        try:
            dialogues = self._loop.run(self._play(self._sampler, jobs, trainer.temperature))
        finally:
            model.train(training)  # sampling turned dropout off
        return rollout_of(dialogues, filler=trainer.processing_class.pad_token_id)

    def disconnect(self, *endpoints: Endpoint) -> None:
        """Close connections of roles that played here, once training is over; a later call opens new ones."""
        for endpoint in endpoints:
            self._loop.run(endpoint.aclose())

    async def _play(self, sampler: Sampler, jobs: list[Job], temperature: float) -> list[Dialogue]:
        sampler.forget_all()  # the weights have changed since the last batch
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
        """What this process plays. Siblings meet the same world, which is another at each step; evaluations
        meet the same worlds every time, so that steps can be compared."""
        step, seed = trainer.state.global_step, trainer.args.seed
        siblings = trainer.num_generations if training else trainer.num_generations_eval
        kind = self._count(step) if training else "eval"
        jobs = []
        for place, row in enumerate(rows, trainer.accelerator.process_index * len(rows)):
            scenario = self._scenario(row)
            number, k = divmod(place, siblings)
            group = f"{kind}_{number:03d}_{scenario.id}"
            world = world_seed(seed, step + 1) if training else held_out_seed(seed, k + 1)
            jobs.append(Job(scenario, f"{group}_{k}", group, seed=world, step=step + 1 if training else None))
        return jobs

    def _count(self, step: int) -> int:
        """The number of this batch among those of its step."""
        last, number = self._played
        self._played = (step, number + 1 if last == step else 0)
        return self._played[1]

    def _scenario(self, row: dict[str, Any]) -> Scenario:
        name = row.get("scenario")
        if name not in self.scenarios:
            raise InputError(
                f"no scenario {name!r}",
                where="the dataset's column `scenario`",
                fix="Give the Sandbox every scenario a row names; scenario_rows() makes the dataset",
            )
        return self.scenarios[name]


def _check_sampling(trainer: Any) -> None:
    args = trainer.args
    plain = {"use_vllm": False, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    for name, value in plain.items():
        if (getattr(args, name) or value) != value:
            raise InputError(
                f"{name} is {getattr(args, name)}",
                fix="The Sandbox samples TRL's own model, at its temperature",
            )
    if not args.temperature > 0:
        raise InputError(f"temperature {args.temperature}", fix="Only sampled tokens can be learnt from")
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise InputError(
            "the model is spread over processes, and the Sandbox samples a whole one in each",
            fix="Plain data parallelism (accelerate launch), or a rollout_func of your own with vLLM",
        )


class _Loop:
    """An event loop in a thread of its own, kept from batch to batch: connections of model-driven roles stay
    open, and a notebook may run a loop of its own beside it."""

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
            future.cancel()  # an interrupted wait must not leave dialogues running
            raise


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
