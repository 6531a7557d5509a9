"""All exceptions that this package raises deliberately.

    MapoError
     ├─ InputError (also a ValueError)   an argument, setting or file is invalid
     │   ├─ RubricError                  a rubric is malformed, or levels do not fit it
     │   ├─ ScenarioError                a scenario, card or story cannot be played
     │   ├─ RecordError                  a line or file is neither a mapo record nor an EMPA result
     │   └─ RewardError                  turn rewards or groups are not valid input for an estimator
     ├─ StoreError                       writing failed: disk full, read-only, locked by another process
     ├─ EndpointError                    a model could not be reached or refused, after all retries
     ├─ AnswerError                      a model answered, but never in the requested form
     ├─ ContextError                     a prompt no longer fits into the context of a model
     ├─ TrainError                       training cannot continue: non-finite loss, no usable dialogue
     └─ JudgeError                       too many turns are unscored: the run stops

Every message states what is wrong, where (file, line, key) and how to fix it. Any other exception that
escapes from this package is a bug.
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return the command that adds the packages of an extra to an installed mapo.

    The distribution is called mapo-rl; the package called mapo on PyPI is a different project.
    """
    return f"Run: pip install 'mapo-rl[{extra}]' (in a checkout: pip install '.[{extra}]')"


class MapoError(Exception):
    """Base class of all deliberate errors: the problem, its location and a suggested fix."""

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        self.problem = problem
        self.where = where
        self.fix = fix
        text = f"{where}: {problem}" if where else problem
        separator = " " if text.endswith((".", "!", "?")) else ". "
        super().__init__(f"{text}{separator}{fix}" if fix else text)


class InputError(MapoError, ValueError):
    """An argument, setting or file is invalid."""


class RubricError(InputError):
    """A rubric is malformed, or levels do not fit it."""


class ScenarioError(InputError):
    """A scenario, card or story cannot be played."""


class RecordError(InputError):
    """A line or file cannot be read as a record."""


class RewardError(InputError):
    """Turn rewards or groups are not valid input for an estimator."""


class StoreError(MapoError):
    """Writing to disk failed."""


class EndpointError(MapoError):
    """A model could not be reached or refused, after all retries."""


class ContextError(MapoError):
    """A prompt no longer fits into the context of a model: the policy's, or that of a local role."""


class TrainError(MapoError):
    """Training cannot continue."""


class AnswerError(MapoError):
    """A model answered, but never in the requested form."""


class JudgeError(MapoError):
    """Too many turns are unscored; continuing would waste dialogues."""
