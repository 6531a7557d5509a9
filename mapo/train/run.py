"""A complete training run: the test before, the training, the test after, and the summary."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mapo.advantage import advantages
from mapo.config import SHARDED_LORA, Config, with_steps, without_addresses
from mapo.errors import InputError
from mapo.local_model.devices import gpu_ids
from mapo.local_model.files import restore_replaced
from mapo.local_model.gpu_memory import MemoryWatch, memory_reader
from mapo.local_model.layers import tune_for_training
from mapo.local_model.memory import MemoryPlan
from mapo.local_model.policy import LocalPolicy, folder_of, load_policy
from mapo.local_model.template import read_template
from mapo.measure.rubric import Rubric
from mapo.players.casting import cast_from_config, every_model
from mapo.players.prompts import prompts_from_config
from mapo.players.reading import check_expected_steps
from mapo.sampling.interface import PolicySampler
from mapo.sampling.sampler import Sampler
from mapo.sampling.tokens import longest_dialogue
from mapo.sampling.vllm.engine import check_vllm, start_vllm
from mapo.sampling.vllm.sampler import VllmSampler
from mapo.sandbox.cast import Casting
from mapo.sandbox.rollout import Rules
from mapo.scenarios.official import official_test_cards
from mapo.scenarios.overlap import Overlap, compare_sets
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.score import Score, score_dialogues
from mapo.scoring.spot_checks import restored_window
from mapo.store import JsonlWriter, RunDir, read_steps, write_stop_reason
from mapo.text import counted
from mapo.train import checkpoint
from mapo.train.callbacks import STEP, TEST, VALIDATION, Callbacks, RunPlan
from mapo.train.loop import train
from mapo.train.metrics import check_trackers, open_trackers
from mapo.train.optim import PolicyOptimizer, make_optimizer
from mapo.train.processes import ProcessGroup
from mapo.train.rollouts import play_evaluation, write_json
from mapo.train.setup import (
    Training,
    check_run,
    claim_run,
    contaminated_by,
    note_decoding,
    start_levels_of,
)
from mapo.train.sharding.optimizer import ShardedOptimizer
from mapo.train.sharding.reference import shard_reference
from mapo.types import Dialogue


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The result of a run. `before` and `after` are held-out scores, None if that test was not played."""

    summary: dict[str, Any]
    before: Score | None
    after: Score | None
    before_dialogues: Sequence[Dialogue]
    after_dialogues: Sequence[Dialogue]


async def run(
    config: Config,
    out: Path,
    casting: Casting,
    *,
    paid: bool = False,
    resume: bool = False,
    callbacks: Callbacks | None = None,
    processes: ProcessGroup | None = None,
    loaded: tuple[LocalPolicy, PolicySampler] | None = None,
    memory: MemoryPlan | None = None,
) -> TrainingOutcome:
    """Train with `config` in the run directory `out`.

    `paid` says that calls of the roles cost money: then dialogues of an interrupted step are used again. A
    resumed run ends with the same weights as an uninterrupted one. `loaded` is the result of `load_model` if
    roles share it, `memory` the plan for the manifest.
    """
    began = time.monotonic()
    scenarios = chosen_scenarios(config)
    config = with_steps(config, len(scenarios["train"]))
    processes = processes or ProcessGroup()
    rules = rules_of(config)
    check_options(config)
    check_sampler(config, processes.world_size)
    check_trackers(config.run.trackers)
    check_shard(config, processes.world_size)
    if processes.is_leader:
        check_run(out, config, scenarios, resume=resume)
    callbacks = callbacks or Callbacks()
    async with open_training(
        config, out, scenarios, rules, casting, paid, callbacks, processes, loaded, memory
    ) as t:
        t.callbacks.run_begins(run_plan(config, scenarios))
        repeats = config.eval.test_repeats
        before = await play_evaluation(t, scenarios["test"], repeats, "before") if repeats else []
        load_last_checkpoint(t)
        restore_checks(t)
        if resume and not RunDir(out).summary.exists():  # a finished run has nothing left to do
            t.callbacks.resumes(t.done + 1)
        await train(t)
        chosen = t.best["step"] if t.best else t.done
        if repeats and chosen != t.done:
            checkpoint.load(t.run.checkpoint(chosen), t.policy)
            t.sampler.forget_all()
        after = await play_evaluation(t, scenarios["test"], repeats, "after") if repeats else []
        rubric = t.rules.rubric
        scores = score_dialogues("before", before, rubric), score_dialogues("after", after, rubric)
        summary = summarise(
            config,
            read_steps(t.run.metrics),
            t.policy.name,
            scores,
            done=t.done,
            chosen=chosen,
            best=t.best,
            seconds=time.monotonic() - began,
            trained_on_test=contaminated_by(config, scenarios),
        )
        if processes.is_leader:
            write_json(t.run.summary, summary)
        return TrainingOutcome(summary, *scores, before, after)


def chosen_scenarios(config: Config) -> dict[str, Sequence[Scenario]]:
    """Load the scenarios of the three splits. Raise InputError if two splits share one, or near copies."""
    s = config.scenarios
    splits = {split: load_scenarios(getattr(s, split), s.domain) for split in ("train", "validation", "test")}
    if (taken := official_test_cards([*splits["train"], *splits["validation"]])) and not s.contaminated:
        raise InputError(
            f"{counted(len(taken), 'official test card')} of EMPA would be trained or validated on, such as "
            f"{taken[0]}",
            where="scenarios.train, scenarios.validation",
            fix="Use CARDS:train, or set scenarios.contaminated=true, which marks every result",
        )
    pairs = [("train", "validation"), ("train", "test"), ("validation", "test")]
    if s.contaminated:
        pairs.remove(("train", "test"))
    for a, b in pairs:
        shared = {x.id for x in splits[a]} & {x.id for x in splits[b]}
        if shared:
            raise InputError(
                f"{', '.join(sorted(shared)[:3])} in both {a} and {b}",
                where="scenarios",
                fix="Make disjoint splits with mapo scenarios split",
            )
    leaks = compare_sets(splits)[1]
    if s.contaminated:
        leaks = [leak for leak in leaks if _sides(leak) != {"train", "test"}]
    if leaks:
        raise InputError(
            f"{leaks[0].a} and {leaks[0].b}, which are in different splits, are nearly the same",
            where="scenarios",
            fix="Make disjoint splits with mapo scenarios split",
        )
    return dict(splits)


def _sides(leak: Overlap) -> set[str]:
    return {name.partition(":")[0] for name in (leak.a, leak.b)}


def run_plan(config: Config, scenarios: dict[str, Sequence[Scenario]]) -> RunPlan:
    """Return the phases of a run, from which its remaining time is estimated."""
    steps, rollout, evals = config.optim.steps, config.rollout, config.eval
    turns = evals.max_turns or rollout.max_turns
    return RunPlan(
        steps=steps,
        sizes={
            STEP: float(rollout.scenarios * rollout.siblings * rollout.max_turns),
            VALIDATION: float(len(scenarios["validation"]) * evals.repeats * turns),
            TEST: float(len(scenarios["test"]) * evals.test_repeats * turns),
        },
        validations=frozenset(step for step in range(1, steps + 1) if evals.due(step, steps)),
        tested=evals.test_repeats > 0,
    )


def rules_of(config: Config) -> Rules:
    """Return the rules by which dialogues are played and rewarded."""
    r = config.rollout
    return Rules(
        Rubric.load(config.scenarios.domain),
        reward=config.reward.name,
        distance=config.reward.distance,
        steps=config.reward.steps,
        gamma=config.advantage.gamma,
        min_turns=r.min_turns,
        max_turns=r.max_turns,
        system=prompts_from_config(config).policy_system if r.system else None,
        temperature=r.temperature,
        top_p=r.top_p,
        max_tokens=r.max_tokens,
    )


def check_options(config: Config) -> None:
    """Check the options of reward and estimator, which otherwise fail only after the first dialogues."""
    if config.reward.steps == "expected":
        check_expected_steps(cast_from_config(config))
    advantages([], [], **config.advantage.resolved(config.reward.name).options())


def check_shard(config: Config, processes: int) -> None:
    """Raise InputError if the training state is to be divided (`run.shard`) and cannot be."""
    if not config.run.shard:
        return
    folder = folder_of(config.model.source)
    if folder is not None and (folder / "adapter_config.json").is_file():
        raise InputError(SHARDED_LORA, where=config.model.source, fix="Set run.shard=false")
    if processes == 1:
        raise InputError(
            "the training state cannot be divided: there is one process",
            where="run.shard",
            fix="Set run.processes to the number of GPUs, or use accelerate launch --num_processes N",
        )


def check_sampler(config: Config, processes: int) -> None:
    """Raise InputError if the policy cannot be sampled with `rollout.sampler` in this run."""
    if config.rollout.sampler != "vllm":
        return
    if processes > 1:
        raise InputError(
            f"vLLM samples in one process, and there are {processes}",
            where="rollout.sampler",
            fix="Start one process, use rollout.sampler=own, or --engine verl",
        )
    for role, spec in every_model(config).items():
        if spec.local is not None:
            raise InputError(
                f"the {role} is a local model, which cannot be sampled beside vLLM",
                where=spec.model,
                fix="Serve the model and give its base URL, or use rollout.sampler=own",
            )
    check_vllm(config.model.device)


@asynccontextmanager
async def open_training(
    config: Config,
    out: Path,
    scenarios: dict[str, Sequence[Scenario]],
    rules: Rules,
    casting: Casting,
    paid: bool,
    callbacks: Callbacks,
    processes: ProcessGroup,
    loaded: tuple[LocalPolicy, PolicySampler] | None = None,
    memory: MemoryPlan | None = None,
) -> AsyncIterator[Training]:
    """Load the model, claim the run directory and open its files; close everything at the end."""
    if processes.is_leader and (folder_of(config.model.source) is None):
        callbacks.message(f"loading {config.model.source} from the Hugging Face hub or its local cache")
    policy, sampler = loaded or load_model(config)
    run = RunDir(out)
    if processes.is_leader:  # after every check: a refused run leaves nothing behind
        claim_run(out, config, scenarios, memory=memory)
        note_decoding(out, sampler.decoding)
        restore_replaced(run.checkpoint(0).parent, checkpoint.LEFTOVERS)
    processes.wait()
    if config.run.shard and policy.frozen is not None and loaded is None:
        # A loaded model is sampled by roles too, in each process on its own.
        shard_reference(policy.frozen, processes)
    t = Training(
        config=config,
        run=run,
        policy=policy,
        sampler=sampler,
        optimizer=optimizer_of(config, policy, processes),
        casting=casting,
        rules=rules,
        train_scenarios=scenarios["train"],
        validation_scenarios=scenarios["validation"],
        start_levels=start_levels_of(config),
        processes=processes,
        callbacks=callbacks,
        paid=paid,
    )
    try:
        if processes.is_leader:
            t.metrics = JsonlWriter(run.metrics)
            settings = without_addresses(config)
            t.trackers = open_trackers(config.run.trackers, run.tensorboard, out.name, settings)
            decoder = f" Decoder: {sampler.decoding}." if sampler.decoding else ""
            dtype = str(policy.dtype).removeprefix("torch.")
            template = sampler.template.description
            callbacks.message(f"{policy.name}: {dtype} on {policy.device}. {template}.{decoder}")
            run.stopped.unlink(missing_ok=True)
        with MemoryWatch(memory_reader(gpu_ids(policy.device))) as t.gpu_memory:
            async with sampler:
                yield t
    except Exception as error:
        if t.metrics:  # without it another process may be training in this folder
            write_stop_reason(run, error)
        raise
    finally:
        for tracker in t.trackers:
            tracker.close()
        if t.metrics:
            t.metrics.close()


def load_model(config: Config, *, keep_base: bool = False) -> tuple[LocalPolicy, PolicySampler]:
    """Load the policy as it was before training, and a sampler for it; `keep_base` as in `load_policy`."""
    m, r = config.model, config.rollout
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    torch.manual_seed(config.run.seed)  # new adapters are initialised at random
    policy = load_policy(
        m.source,
        dtype=m.dtype,
        lora=m.lora,
        device=m.device,
        keep_reference=config.run.reference,
        keep_base=keep_base,
    )
    tune_for_training(policy.model, checkpointing=m.checkpointing, compile=m.compile)
    model_limit = getattr(policy.model.config, "max_position_embeddings", None)
    context = longest_dialogue(r.context, model_limit, m.source)
    template = read_template(policy.tokenizer, enable_thinking=m.thinking)
    if r.sampler == "vllm":
        engine = start_vllm(policy, slots=r.at_once, context=context, memory=r.vllm_memory)
        return policy, VllmSampler(policy, template, engine, context=context)
    sampler = Sampler(
        policy.model, template, name=policy.name, slots=r.at_once, context=context, stream=m.stream
    )
    return policy, sampler


def optimizer_of(config: Config, policy: LocalPolicy, processes: ProcessGroup) -> PolicyOptimizer:
    """Return the optimizer of the policy's trainable parameters."""
    decay = config.optim.weight_decay
    if not config.run.shard:
        return make_optimizer(policy.model, weight_decay=decay)
    named = [(n, p) for n, p in policy.model.named_parameters() if p.requires_grad]
    return ShardedOptimizer(named, processes, weight_decay=decay)


def load_last_checkpoint(t: Training) -> None:
    """Load the last checkpoint, if there is one. This comes after the test before training, which needs the
    policy as it was."""
    last = checkpoint.latest(t.run.checkpoint(0).parent)
    if last:
        state = checkpoint.load(last, t.policy, t.optimizer, verify=False)
        t.done, t.best = state["step"], state["best"]
        t.sampler.forget_all()
        if t.processes.is_leader and t.best:  # the process may have been killed between the two
            write_json(t.run.best, t.best)


def restore_checks(t: Training) -> None:
    """Restore the latest spot checks. A run that stopped at their limit stops again, unless it is raised or
    the run is complete."""
    if (check := t.config.roles.check) is None:
        return
    t.checks = restored_window(t.run, t.done, check.window, t.rules.rubric)
    if not t.run.summary.exists() and (error := t.checks.disagreement(check.limit, str(t.run.root))):
        raise error


def summarise(
    config: Config,
    lines: Sequence[dict[str, Any]],
    model: str,
    scores: tuple[Score | None, Score | None],
    *,
    done: int,
    chosen: int,
    best: dict[str, Any] | None,
    seconds: float,
    trained_on_test: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of summary.json. `lines` are the records of steps, `scores` those of both tests,
    `trained_on_test` the test scenarios that were trained on."""
    return {
        "schema": "mapo.summary/1",
        "method": config.advantage.method,
        "reward": config.reward.name,
        "model": model,
        "agents": config.roles.agents,
        "seed": config.run.seed,
        "steps": done,
        "chosen_step": chosen,
        "dialogues": sum(line["dialogues"] for line in lines),
        "seconds": round(sum(line["rollout_s"] + line["update_s"] for line in lines), 1),
        "session_seconds": round(seconds, 1),
        "before": _short(scores[0]),
        "after": _short(scores[1]),
        "validation": best,
        **({"trained_on_test": list(trained_on_test)} if trained_on_test else {}),
    }


def _short(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {
        "epm_q": score.composite.epm_q,
        "interval": list(score.intervals["epm_q"]) if score.intervals else None,
        "passes": score.passes,
        "n": score.n,
    }
