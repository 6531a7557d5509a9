"""A made-up miniature of EMPA's package: the same modules, classes and files, with text of its own.

It is written to a folder and imported from there, so that `--prompts empa` is tested without the package.
Like the package it has a command line that plays cases, whose requests are what ours must be equal to.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": '__version__ = "0.0.miniature"\n',
    "agents/__init__.py": "",
    "agents/actor.py": """
class Actor:
    def __init__(self, llm, *, thinking_budget=7):
        self._llm, self._budget, self._system_prompt = llm, thinking_budget, None

    def set_system_prompt(self, prompt):
        self._system_prompt = prompt

    def generate_reply(self, history, *, director_guidance=None):
        print("miniature actor speaks")
        shown = [f"{n}. {m['role']}: {m['content']}" for n, m in enumerate(history, 1)]
        note = f"note: {director_guidance}" if director_guidance else "no note"
        extra = {"extra_body": {"google": {"budget": self._budget}}} if "gemini" in self._llm.name else None
        messages = [("system", self._system_prompt), ("user", chr(10).join([*shown, note]))]
        return self._llm.complete(messages, max_tokens=111, extra_params=extra).content or ""
""",
    "agents/director.py": """
from empa.rubric.empathy_v2.director_functions import get_director_tools
from empa.rubric.empathy_v2.director_prompt import generate_director_prompt

MIN_TURNS = 12


class Director:
    def __init__(self, llm, scenario, actor_prompt=""):
        self._llm, self.scenario, self.card = llm, scenario, actor_prompt
        self.stages = list(scenario["故事的经过"].values())
        self.revealed_stages, self.revealed_memories, self.revealed_info = [], [], []

    def evaluate_continuation(self, history, *, epj_state=None):
        print("miniature director thinks")
        prompt = generate_director_prompt(epj_state, history, self.revealed_stages, self.revealed_memories)
        try:
            answer = self._llm.complete([("user", prompt)], tools=get_director_tools(), max_tokens=222)
            if not answer.tool_calls:
                return {"should_continue": True, "guidance": None}
            name, args = answer.tool_calls[0]
            self.revealed_info.append({"function": name, "args": args})
            return self._handle(name, args, epj_state["current_turn"])
        except Exception:
            return {"should_continue": True, "guidance": "the miniature failed, go on"}

    def _handle(self, name, args, turn):
        guidance = {
            "observe_and_wait": lambda: None,
            "select_and_reveal_fragment": lambda: self._stage(args["stage_index"]),
            "reveal_memory": lambda: self._memory(args["memory_period"]),
            "adjust_empathy_strategy": lambda: f"turn to {args['focus_aspect']}",
            "introduce_turning_point": lambda: f"turning point: {args['reason']}",
            "continue_without_new_info": lambda: f"stay with {args['focus_suggestion']}",
            "end_conversation": lambda: args["reason"],
        }.get(name, lambda: None)()
        if name == "end_conversation":
            return {"should_continue": turn < MIN_TURNS, "guidance": guidance if turn >= MIN_TURNS else None}
        return {"should_continue": True, "guidance": guidance, "no_intervention": name == "observe_and_wait"}

    def _stage(self, index):
        self.revealed_stages.append(index)
        return f"stage {index}: {self.stages[index]['内容']}"

    def _memory(self, period):
        self.revealed_memories.append(period)
        return f"memory of {period}"
""",
    "agents/judger.py": """
import json
import time

from empa.rubric.empathy_v2.iedr_prompt import generate_iedr_prompt
from empa.rubric.empathy_v2.mdep_prompt import generate_mdep_pr_prompt


class Judger:
    def __init__(self, llm, *, max_retries=3):
        self._llm, self._max_retries = llm, max_retries

    def fill_initial_assessment(self, script_content):
        form = self._ask(generate_iedr_prompt(script_content), 333)
        return {key.removesuffix("_level"): level for key, level in form.items() if key.endswith("_level")}

    def fill_progress_form(self, recent_turns, script_context=None, full_history=None):
        print("miniature judge fills in")
        for attempt in range(self._max_retries):
            if attempt:
                time.sleep(2)
            try:
                form = self._ask(generate_mdep_pr_prompt(recent_turns, script_context, full_history), 444)
                return {f"{a}.{k}": form[f"{a}_{k}_level"] for a in "CAP" for k in ("Prog", "Neg")}
            except Exception:
                continue
        return {}

    def _ask(self, prompt, limit):
        form = {"type": "json_object"}
        answer = self._llm.complete([("user", prompt)], max_tokens=limit, response_format=form)
        return json.loads(answer.content)
""",
    "agents/test_model.py": """
class TestModel:
    def __init__(self, llm, *, system_prompt=None):
        self._llm, self._system_prompt = llm, system_prompt

    def generate_reply(self, history):
        shown = " / ".join(f"{m['role']} said {m['content']}" for m in history)
        system = [("system", self._system_prompt)] if self._system_prompt else []
        return self._llm.complete([*system, ("user", f"so far: {shown}")], max_tokens=555).content or ""
""",
    "llm/__init__.py": "",
    "llm/openai_compatible.py": """
import json
from types import SimpleNamespace


class OpenAICompatibleClient:
    def __init__(self, model, *, api_key, base_url):
        from openai import OpenAI

        self._model, self._client = model, OpenAI(api_key=api_key, base_url=base_url)

    @property
    def name(self):
        return self._model

    def complete(self, messages, *, temperature=0.6, max_tokens=None, response_format=None, tools=None,
                 extra_params=None):
        params = {
            "model": self._model,
            "messages": [{"role": role, "content": text} for role, text in messages],
            "temperature": temperature,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.3,
            "max_tokens": max_tokens,
            **({"response_format": response_format} if response_format else {}),
            **({"tools": tools} if tools else {}),
            **(extra_params or {}),
        }
        message = self._client.chat.completions.create(**params).choices[0].message
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        return SimpleNamespace(content=message.content, tool_calls=calls)
""",
    "orchestrator/__init__.py": "",
    "orchestrator/epj_orchestrator.py": """
class EPJOrchestrator:
    def __init__(self, judger, rubric, *, K=1, max_turns=45):
        self.judger, self.rubric, self.max_turns, self.path = judger, rubric, max_turns, []

    def initialize_at_T0(self, script_content):
        levels = self.judger.fill_initial_assessment(script_content)
        self.path = [self.rubric.compute_initial_deficit(levels)]
        self.energy = None

    def initialize_with_precomputed_iedr(self, filled_iedr, P_0, epm_precomputed=None):
        self.path = [P_0]
        self.energy = epm_precomputed and epm_precomputed["epsilon_energy"]

    def evaluate_at_turn_K(self, recent_turns, current_turn, script_content=None, full_history=None):
        form = self.judger.fill_progress_form(recent_turns, script_content, full_history)
        step = self.rubric.compute_increment(form)
        self.path.append(tuple(a + b for a, b in zip(self.path[-1], step)))
        return {"epm_summary": f"{sum(step)} gained, energy {self.energy}"}
""",
    "orchestrator/chat_loop.py": """
from empa.data.loader import load_config, load_precomputed_iedr
from empa.orchestrator.epj_orchestrator import EPJOrchestrator
from empa.rubric.empathy_v2.mdep_prompt import extract_judger_context


def _build_epj_state(epj, turn, packet):
    return {"current_turn": turn, "P_0": epj.path[0], "P_t": epj.path[-1], **packet}


def run_chat_loop(actor, director, judger, test_model, rubric, script_id, *, max_turns=45):
    config = load_config(script_id)
    card = config["actor_prompt"]
    content = {**config, "judger_context": extract_judger_context(card)}
    epj = EPJOrchestrator(judger, rubric, max_turns=max_turns)
    known = load_precomputed_iedr(script_id)
    if known:
        start = tuple(known["P_0"][axis] for axis in "CAP")
        epj.initialize_with_precomputed_iedr(known["iedr"], start, epm_precomputed=known.get("epm"))
    else:
        epj.initialize_at_T0(content)
    actor.set_system_prompt(card)
    history, guidance = [], None
    for turn in range(1, max_turns + 1):
        message = actor.generate_reply(history, director_guidance=guidance)
        history.append({"role": "actor", "content": message})
        history.append({"role": "test_model", "content": test_model.generate_reply(history)})
        recent = [{"turn": turn, "actor": history[-2]["content"], "test_model": history[-1]["content"]}]
        packet = epj.evaluate_at_turn_K(recent, turn, content, history)
        if turn == max_turns:
            break
        state = _build_epj_state(epj, turn, packet)
        decision = director.evaluate_continuation(history=history, epj_state=state)
        if not decision["should_continue"]:
            break
        guidance = None if decision.get("no_intervention") else decision["guidance"]
""",
    "rubric/__init__.py": "",
    "rubric/empathy_v2/__init__.py": "",
    "rubric/empathy_v2/config.py": """
STEPS = {"C.Prog": (0, 1, 3), "C.Neg": (0, -2, -4), "A.Prog": (0, 1, 3), "A.Neg": (0, -2, -5),
         "P.Prog": (0, 1, 3), "P.Neg": (0, -2, -5)}
UNITS = {"C.1": 2, "C.2": 2, "C.3": 3, "A.1": 2, "A.2": 4, "A.3": 3, "P.1": 2, "P.2": 4, "P.3": 3}


class EmpathyRubricV2:
    dimension_names = ["C", "A", "P"]

    def compute_initial_deficit(self, form):
        return tuple(sum(-UNITS[k] * form.get(k, 0) for k in UNITS if k[0] == axis) for axis in "CAP")

    def compute_increment(self, form):
        return tuple(
            sum(STEPS[f"{axis}.{kind}"][abs(form.get(f"{axis}.{kind}", 0))] for kind in ("Prog", "Neg"))
            for axis in "CAP"
        )

    def generate_test_model_system_prompt(self):
        from empa.rubric.empathy_v2.test_model_prompt import TEST_MODEL_SYSTEM_PROMPT

        return TEST_MODEL_SYSTEM_PROMPT
""",
    "rubric/empathy_v2/test_model_prompt.py": 'TEST_MODEL_SYSTEM_PROMPT = "You are the policy."\n',
    "rubric/empathy_v2/iedr_prompt.py": """
def generate_iedr_prompt(script_content):
    return f"miniature start form C.1_level of {script_content['actor_prompt']} {script_content['scenario']}"
""",
    "rubric/empathy_v2/mdep_prompt.py": """
def extract_judger_context(actor_prompt):
    return actor_prompt[:80]


def generate_mdep_pr_prompt(recent_turns, script_context=None, full_history=None):
    return f"miniature turn form {recent_turns} {script_context['judger_context']} {full_history}"
""",
    "rubric/empathy_v2/director_prompt.py": """
def generate_director_prompt(epj_state, history, stages, memories):
    return f"miniature director {epj_state} {history} {stages} {memories}"
""",
    "rubric/empathy_v2/director_functions.py": """
def get_director_tools():
    names = ("select_and_reveal_fragment", "observe_and_wait", "continue_without_new_info", "reveal_memory",
             "adjust_empathy_strategy", "introduce_turning_point", "end_conversation")
    parameters = {"type": "object", "properties": {"reason": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": n, "description": f"do {n}", "parameters": parameters}}
        for n in names
    ]
""",
    "data/__init__.py": "",
    "data/loader.py": """
import json
from pathlib import Path

HERE = Path(__file__).parent


def get_data_dir():
    return HERE


def load_config(script_id):
    stories = json.loads((HERE / "scenarios" / "character_stories.json").read_text(encoding="utf-8"))
    story = next(story for story in stories if story["剧本编号"] == script_id)
    card = (HERE / "cases" / f"{script_id}.md").read_text(encoding="utf-8")
    return {"actor_prompt": card, "scenario": story}


def load_precomputed_iedr(script_id):
    file = HERE / "precomputed" / "iedr_batch_results.json"
    return json.loads(file.read_text(encoding="utf-8")).get(script_id) if file.exists() else None
""",
    "cli.py": """
import argparse

from empa.agents.actor import Actor
from empa.agents.director import Director
from empa.agents.judger import Judger
from empa.agents.test_model import TestModel
from empa.data.loader import load_config
from empa.llm.openai_compatible import OpenAICompatibleClient
from empa.orchestrator.chat_loop import run_chat_loop
from empa.rubric.empathy_v2.config import EmpathyRubricV2

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--base-url", "--api-key", "--cases", "--output-dir"):
        parser.add_argument(name)
    for name in ("--actor-model", "--judger-model", "--director-model"):
        parser.add_argument(name)
    parser.add_argument("--max-turns", type=int)
    parser.add_argument("command")
    given = parser.parse_args()

    def client(model):
        return OpenAICompatibleClient(model, api_key=given.api_key, base_url=given.base_url)

    rubric, config = EmpathyRubricV2(), load_config(given.cases)
    run_chat_loop(
        Actor(client(given.actor_model)),
        Director(client(given.director_model), config["scenario"], config["actor_prompt"]),
        Judger(client(given.judger_model)),
        TestModel(client(given.model), system_prompt=rubric.generate_test_model_system_prompt()),
        rubric,
        given.cases,
        max_turns=given.max_turns,
    )
""",
}


def write_miniature(folder: Path) -> Path:
    """Write the package to `folder/empa` and return `folder`, for PYTHONPATH."""
    for name, text in FILES.items():
        file = folder / "empa" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder
