"""The benchmarks as tasks of inspect_ai (UK AI Security Institute):

    inspect eval mapo/emobench -T data=EmoBench --model openai/my-model

Questions, prompts, parsing and scores are those of `mapo eval`; inspect provides the models, the log and its
viewer. The same replies give the same scores. Options of `mapo eval` are task arguments here (`-T`),
including settings that belong to a benchmark (temperature, maximum tokens), which are not read from inspect's
own flags. The judge and other roles are model roles: `--model-role judge=...`. Inspect finds the tasks
through the entry point group `inspect_ai`.
"""

from mapo.evals.inspect.dialogues import empa
from mapo.evals.inspect.questions import emobench, eqbench3, eqbench_v2

__all__ = ["emobench", "empa", "eqbench3", "eqbench_v2"]
