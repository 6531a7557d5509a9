"""mapo judge: judges under audit, and whole runs judged again by another one."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.judge import audit, swap

app = commands("Audit judges, and judge finished runs again with another judge.")


@app.callback()
def main() -> None:
    """Audit judges, and judge finished runs again with another judge."""


app.command()(audit.audit)
app.command()(swap.swap)
