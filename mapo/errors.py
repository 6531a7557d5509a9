"""Every error this package raises on purpose.

    MapoError
     ├─ InputError (also a ValueError)   something handed to us cannot be used
     │   ├─ RubricError                  a rubric file, or levels that do not fit a rubric
     │   ├─ ScenarioError                a scenario, card or story that cannot be played
     │   ├─ RecordError                  a line or file that is no record of ours, nor an EMPA result
     │   └─ RewardError                  turn rewards or groups that no estimator can work with
     ├─ StoreError                       the disk refused: full, read-only, locked by another process
     ├─ EndpointError                    a model could not be reached, or refused, after all retries
     ├─ AnswerError                      a model answered, but never in the form it was asked for
     ├─ ContextError                     a dialogue has outgrown the policy's context: it ends there
     ├─ TrainError                       training cannot go on: the loss is not finite, no dialogue is usable
     └─ JudgeError                       too many turns could not be judged: the run stops

Each message says what is wrong, where (file, line, key) and what to do about it. Anything else that
escapes from this package is a bug.
"""

from __future__ import annotations


class MapoError(Exception):
    """Base of all deliberate errors: `problem`, the place it was found, and the remedy."""

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        self.problem = problem
        self.where = where
        self.fix = fix
        text = f"{where}: {problem}" if where else problem
        stop = " " if text.endswith((".", "!", "?")) else ". "
        super().__init__(f"{text}{stop}{fix}" if fix else text)


class InputError(MapoError, ValueError):
    """Something handed to us cannot be used."""


class RubricError(InputError):
    """A rubric that is malformed, or levels that do not fit it."""


class ScenarioError(InputError):
    """A scenario, card or story that cannot be played."""


class RecordError(InputError):
    """A line or file that cannot be read as a dialogue."""


class RewardError(InputError):
    """Turn rewards or groups that no estimator can work with."""


class StoreError(MapoError):
    """The disk refused to keep what it was given."""


class EndpointError(MapoError):
    """A model could not be reached, or refused, after all retries."""


class ContextError(MapoError):
    """A dialogue has outgrown the policy's context."""


class TrainError(MapoError):
    """Training cannot go on as it is."""


class AnswerError(MapoError):
    """A model answered, but never in the form it was asked for."""


class JudgeError(MapoError):
    """Too many turns could not be judged: going on would only waste dialogues."""
