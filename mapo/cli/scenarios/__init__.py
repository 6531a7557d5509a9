"""mapo scenarios: list, check, split, make and screen sets of scenarios."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.scenarios import check, make, screen, split, start_levels
from mapo.cli.scenarios import list as listing

app = commands("List, check, split, make and screen sets of scenarios.")

app.command()(make.make)
app.command()(screen.screen)
app.command("list")(listing.list_scenarios)
app.command()(check.check)
app.command()(split.split)
app.command("start-levels")(start_levels.start_levels)
