"""The published package `empa`, imported from the user's environment, and the requests of its agents.

Its agents call a model synchronously through its client for OpenAI-compatible servers. A `Link` is such a
client without a connection. `request` runs an agent up to its call and returns what it would have sent;
`finish` runs the agent again and gives it the answer. In between, mapo's own `Chat` answers, with its cache,
retries and limits, and the event loop is never blocked. So prompts, parameters and the handling of answers
are the package's own code.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import ANY_OBJECT, Answer, Request, Tool
from mapo.types import Message

NAME = "empa"
INSTALL = (
    "Install EMPA's code in this environment (pip install . in a clone of its repository, "
    "see arXiv:2603.00552), or put it on PYTHONPATH"
)
_MODULES = (
    "empa.agents.actor",
    "empa.agents.director",
    "empa.agents.judger",
    "empa.agents.test_model",
    "empa.llm.openai_compatible",
    "empa.orchestrator.chat_loop",
    "empa.orchestrator.epj_orchestrator",
    "empa.rubric.empathy_v2.config",
    "empa.rubric.empathy_v2.mdep_prompt",
    "empa.rubric.empathy_v2.iedr_prompt",
    "empa.rubric.empathy_v2.director_prompt",
    "empa.rubric.empathy_v2.director_functions",
    "empa.rubric.empathy_v2.test_model_prompt",
    "empa.data.loader",
)
_SENT = ("model", "messages", "temperature", "max_tokens", "tools", "response_format", "extra_body")
"""Parameters of a call that a Request has fields for; the others become body fields."""
_T = TypeVar("_T")


class _Asked(BaseException):
    """Carries the parameters of a call out of an agent. A BaseException, so that no agent handles it."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params


class Link:
    """The package's client for one role of one dialogue, which asks mapo instead of a server."""

    def __init__(self, client_class: type[Any], model: str) -> None:
        self._answer: Answer | Exception | None = None
        # Without __init__, which opens connections.
        self.client = object.__new__(client_class)
        self.client._model = model
        self.client._client = SimpleNamespace(
            chat=SimpleNamespace(completions=SimpleNamespace(create=self._create))
        )

    def request(self, call: Callable[[], Any], *, session: str, nonce: str, turn: int) -> Request:
        """Run an agent up to its call of a model and return the request it makes."""
        self._answer = None
        try:
            call()
        except _Asked as asked:
            return _request(asked.params, session, nonce, turn)
        raise _other_layout("an agent answered without asking its model")

    def finish(self, call: Callable[[], _T], answer: Answer | Exception) -> _T:
        """Run the agent again with the answer, or with the error of the call."""
        self._answer = answer
        return call()

    def _create(self, **params: Any) -> Any:
        answer = self._answer
        if answer is None:
            raise _Asked(params)
        if isinstance(answer, Exception):
            raise answer
        calls = [
            SimpleNamespace(function=SimpleNamespace(name=call.name, arguments=call.arguments))
            for call in answer.tool_calls
        ]
        message = SimpleNamespace(content=answer.text, tool_calls=calls or None)
        return SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason=answer.reply.finish)])


def _request(params: Mapping[str, Any], session: str, nonce: str, turn: int) -> Request:
    """Return the parameters of a call as a request."""
    try:
        form = params.get("response_format")
        if form not in (None, {"type": "json_object"}):
            raise ValueError(f"response_format is {form}")
        functions = [tool["function"] for tool in params.get("tools") or ()]
        return Request(
            tuple(Message(m["role"], m["content"]) for m in params["messages"]),
            temperature=params["temperature"],
            max_tokens=params["max_tokens"],
            schema=None if form is None else ANY_OBJECT,
            tools=tuple(Tool(**function) for function in functions),
            session=session,
            nonce=nonce,
            turn=turn,
            body={
                **{name: value for name, value in params.items() if name not in _SENT},
                **(params.get("extra_body") or {}),
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _other_layout(f"a call cannot be read: {error}") from None


class EmpaPackage:
    """The imported package."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        def part(module: str, name: str) -> Any:
            try:
                return getattr(modules[f"{NAME}.{module}"], name)
            except AttributeError:
                raise _other_layout(f"{NAME}.{module} has no {name}") from None

        self.actor = part("agents.actor", "Actor")
        self.director = part("agents.director", "Director")
        self.judger = part("agents.judger", "Judger")
        self.test_model = part("agents.test_model", "TestModel")
        self.orchestrator = part("orchestrator.epj_orchestrator", "EPJOrchestrator")
        self.state_for_director: Callable[..., Any] = part("orchestrator.chat_loop", "_build_epj_state")
        self.judge_context: Callable[[str], str] = part(
            "rubric.empathy_v2.mdep_prompt", "extract_judger_context"
        )
        self.rubric = part("rubric.empathy_v2.config", "EmpathyRubricV2")()
        self.policy_system = str(self.rubric.generate_test_model_system_prompt())
        self.data = Path(part("data.loader", "get_data_dir")())
        self.folder = Path(str(modules[NAME].__file__)).parent
        self.version = str(getattr(modules[NAME], "__version__", "unknown"))
        self._client_class = part("llm.openai_compatible", "OpenAICompatibleClient")
        link = self.link("any")
        model = self.test_model(link.client, system_prompt=self.policy_system)
        self.policy_request = link.request(lambda: model.generate_reply([]), session="", nonce="", turn=0)
        """A request to the policy, for its sampling parameters."""

    def link(self, model: str) -> Link:
        return Link(self._client_class, model)

    def fingerprint(self) -> str:
        """Return a hash of the package's source."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.rglob("*.py")):
            content = file.read_bytes()
            name = file.relative_to(self.folder).as_posix().encode()
            digest.update(b"%d %s %d %s" % (len(name), name, len(content), content))
        return digest.hexdigest()[:16]

    def check_rubric(self, rubric: Rubric) -> None:
        """Raise InputError if the package gives levels other numbers than `rubric`."""
        theirs = self.rubric
        if tuple(theirs.dimension_names) != tuple(rubric.keys):
            raise InputError(
                f"EMPA's prompts judge {', '.join(theirs.dimension_names)}, the rubric '{rubric.name}' "
                f"{', '.join(rubric.keys)}",
                fix="Use --prompts empa with EMPA's cards only",
            )
        steps = {
            f"{axis.key}.{kind}": [(sign * level, number) for level, number in enumerate(numbers)]
            for axis in rubric.axes
            for kind, sign, numbers in (("Prog", 1, axis.progress), ("Neg", -1, axis.regression))
        }
        starts = {item.key: list(enumerate(item.deficit)) for item in rubric.indicators}
        for keys, compute in ((steps, theirs.compute_increment), (starts, theirs.compute_initial_deficit)):
            for key, levels in keys.items():
                for level, number in levels:
                    if sum(compute({key: level})) != number:
                        raise _other_layout(
                            f"it counts level {level} of {key} as {sum(compute({key: level}))}, not {number}"
                        )


@lru_cache(maxsize=1)
def load_package() -> EmpaPackage:
    """Import the package. Raises InputError if it is missing or has another layout."""
    try:
        modules = {name: importlib.import_module(name) for name in (NAME, *_MODULES)}
    except ImportError as error:
        if error.name in (NAME, None) or not str(error.name).startswith(NAME):
            raise InputError(
                f"--prompts empa needs the Python package '{NAME}' ({error})", fix=INSTALL
            ) from None
        raise _other_layout(str(error)) from None
    _silence()
    try:
        return EmpaPackage(modules)
    except (AttributeError, TypeError) as error:
        raise _other_layout(str(error)) from None


def _silence() -> None:
    """Stop the package from printing. Its modules get a `print` of their own, because redirecting stdout
    would swallow what other threads print."""
    for name, module in list(sys.modules.items()):
        if name == NAME or name.startswith(f"{NAME}."):
            vars(module)["print"] = _no_print
    log = logging.getLogger(NAME)
    log.addHandler(logging.NullHandler())
    log.propagate = False


def _no_print(*_: object, **__: object) -> None:
    pass


def _other_layout(problem: str) -> InputError:
    return InputError(
        f"the Python package '{NAME}' has another layout than version 0.1.0 ({problem})", fix=INSTALL
    )
