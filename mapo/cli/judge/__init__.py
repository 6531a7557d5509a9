"""mapo judge: audit judges, and rejudge finished runs."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.judge import audit, swap

app = commands("Audit judges, and rejudge finished runs with another judge.")


@app.callback()
def main() -> None:
    """Audit judges, and rejudge finished runs with another judge."""


app.command()(audit.audit)
app.command()(swap.swap)
