"""How much does the pocket model lean on having read the train scenarios?

    PYTHONPATH=. python scripts/pocket/recall.py mapo/local_model/pocket

Begins a reply for it ("Let me stop at") and looks whether it goes on with a particular of the moment, in scenarios
it has read text of (train) and in others (validation and test): after a line that tells something, and after one in
which the person closes up, where it has to go back to what was told before. And whether it names the right
feeling once a sign of it has shown.
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


def said(*turns: str) -> str:
    """A dialogue that ends with the assistant's turn: lines of the person and replies, by turns."""
    marks = (USER, ASSISTANT)
    return "".join(f"{marks[k % 2]}{turn}{END}" for k, turn in enumerate(turns)) + ASSISTANT


class Probe:
    def __init__(self, folder: str) -> None:
        self.model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.rng = Rng("recall")

    def takes_up(self, beat: Beat, *turns: str) -> bool:
        reply = _greedy(self.model, self.tokenizer, said(*turns) + self.rng.pick(FRAMES), 6)
        return any(content(reply) & content(thing) for thing in beat.about)

    def names(self, beat: Beat, *turns: str) -> bool:
        reply = _greedy(self.model, self.tokenizer, said(*turns) + "You have every right to be", 4)
        return any(reply.strip().startswith(name) for name in feelings()[beat.cues["feeling"]]["names"])

    def measure(self, scenarios: list[Scenario]) -> str:
        told: list[bool] = []
        closed: list[bool] = []
        named: list[bool] = []
        for scenario in scenarios:
            for beat in scenario.beats:
                first, second = beat.says[:2]
                told += [self.takes_up(beat, first), self.takes_up(beat, first, "I see.", second)]
                guarded = self.rng.pick(scenario.guarded)
                start = (scenario.opening, "I see.", first, self.rng.pick(BAD), guarded)
                closed.append(self.takes_up(beat, *start))
                named.append(self.names(beat, first, "I see.", second))
        share = [f"{sum(hits) / len(hits):.0%}" for hits in (told, closed, named)]
        return f"takes up what was told {share[0]}, after a guarded line {share[1]}, names the feeling {share[2]}"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder")
    args = ask.parse_args()
    probe = Probe(args.folder)
    print("read:    ", probe.measure(load_scenarios("builtin:train")[::7]))
    print("not read:", probe.measure(load_scenarios("builtin:validation") + load_scenarios("builtin:test")))


if __name__ == "__main__":
    main()
