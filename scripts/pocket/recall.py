"""Compare the pocket model on scenarios from its pretraining text (train) and on others (validation and test).

    PYTHONPATH=. python scripts/pocket/recall.py mapo/local_model/pocket

Starts a reply ("Let me stop at") and checks whether the model continues with a thing from the dialogue: after a message
that mentions something, and after a guarded message, where it must go back to an earlier one. Also checks whether it
names the right feeling after a sign of it.
"""

from __future__ import annotations

import argparse

import torch
from grammar import ASSISTANT, END, USER, Rng, feelings
from skills import _greedy
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from mapo.scenarios.scenario import Beat, Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scripted.reading import content

FRAMES = ("Let me stop at", "My mind goes to", "They will not have seen", "There is more to")
BAD = ("Chin up, everything happens for a reason.", "You should call them today.", "You are lonely.")


def prompt_of(*turns: str) -> str:
    """Return the prompt for a reply; user messages and replies alternate in `turns`."""
    marks = (USER, ASSISTANT)
    return "".join(f"{marks[k % 2]}{turn}{END}" for k, turn in enumerate(turns)) + ASSISTANT


class RecallTest:
    def __init__(self, folder: str) -> None:
        self.model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.rng = Rng("recall")

    def takes_up(self, beat: Beat, *turns: str) -> bool:
        reply = _greedy(self.model, self.tokenizer, prompt_of(*turns) + self.rng.pick(FRAMES), 6)
        return any(content(reply) & content(thing) for thing in beat.about)

    def names(self, beat: Beat, *turns: str) -> bool:
        reply = _greedy(self.model, self.tokenizer, prompt_of(*turns) + "You have every right to be", 4)
        return any(reply.strip().startswith(name) for name in feelings()[beat.cues["feeling"]]["names"])

    def measure(self, scenarios: list[Scenario]) -> str:
        mentioned: list[bool] = []
        closed: list[bool] = []
        named: list[bool] = []
        for scenario in scenarios:
            for beat in scenario.beats:
                first, second = beat.says[:2]
                mentioned += [self.takes_up(beat, first), self.takes_up(beat, first, "I see.", second)]
                guarded = self.rng.pick(scenario.guarded)
                start = (scenario.opening, "I see.", first, self.rng.pick(BAD), guarded)
                closed.append(self.takes_up(beat, *start))
                named.append(self.names(beat, first, "I see.", second))
        share = [f"{sum(hits) / len(hits):.0%}" for hits in (mentioned, closed, named)]
        return f"takes up a mentioned thing {share[0]}, after a guarded message {share[1]}, names the feeling {share[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="folder of the model")
    args = parser.parse_args()
    probe = RecallTest(args.folder)
    print("in the pretraining text:    ", probe.measure(load_scenarios("builtin:train")[::7]))
    print(
        "not in the pretraining text:",
        probe.measure(load_scenarios("builtin:validation") + load_scenarios("builtin:test")),
    )


if __name__ == "__main__":
    main()
