"""The benchmarks as tasks of inspect_ai (UK AI Security Institute), for people who evaluate with it:

    inspect eval mapo/emobench -T data=EmoBench --model openai/my-model

Questions, prompts, ways of asking, parsing and scores are the ones of `mapo eval`: here they are only handed
to inspect, which brings the models, the log and its viewer. The same replies give the same scores. What a
command-line option is there is a task argument here (`-T`); settings that belong to a benchmark (temperature,
length) come from those, not from inspect's own flags. Judges and other roles are model roles:
`--model-role judge=...`. Found by inspect through the entry point group `inspect_ai`.
"""

from mapo.evals.inspect.dialogues import empa
from mapo.evals.inspect.questions import emobench, eqbench3, eqbench_v2

__all__ = ["emobench", "empa", "eqbench3", "eqbench_v2"]
