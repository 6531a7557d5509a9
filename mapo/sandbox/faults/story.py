"""What a user's line says against its scenario: stages told too early, contradictions of the persona."""

from __future__ import annotations

from mapo.sandbox.faults.manners import contradicts
from mapo.scenarios.scenario import Scenario


class Story:
    """What may be said when in one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        beats = [line for beat in scenario.beats for line in beat.says]
        self._words = "\n".join([scenario.opening, *scenario.guarded, *scenario.eased, *beats])
        self._later: dict[int, frozenset[str]] = {}

    def contradicted_by(self, line: str) -> bool:
        """Return whether the line contradicts the person's age, name or relatives."""
        persona = self.scenario.persona
        return contradicts(line, persona.name, persona.age, self._words)

    def later_details(self, revealed: int) -> frozenset[str]:
        """Return the details, case-folded, that belong only to stages after the first `revealed` ones."""
        if revealed not in self._later:
            self._later[revealed] = self._later_details(revealed)
        return self._later[revealed]

    def told_early(self, line: str, revealed: int) -> bool:
        """Return whether the line has a detail of a stage that was not reached yet."""
        folded = line.casefold()
        return any(detail in folded for detail in self.later_details(revealed))

    def _later_details(self, revealed: int) -> frozenset[str]:
        scenario = self.scenario
        about_them = (scenario.topic, scenario.opening, scenario.wants_to_say, scenario.hopes_for)
        memories = (line for memory in scenario.memories for line in memory.says)
        reached = (line for stage in scenario.stages[:revealed] for line in stage.says)
        any_time = (*scenario.guarded, *scenario.eased, *memories, *reached)
        known = " ".join([*about_them, scenario.persona.background, *any_time]).casefold()
        later = {about.casefold() for stage in scenario.stages[revealed:] for about in stage.about}
        return frozenset(about for about in later if about not in known)
