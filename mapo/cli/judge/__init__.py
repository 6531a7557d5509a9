"""mapo judge: audit judges, rejudge finished runs, and explain levels."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.judge import audit, explain, swap

app = commands("Audit judges, rejudge finished runs with another judge, and explain levels.")


@app.callback()
def main() -> None:
    """Audit judges, rejudge finished runs with another judge, and explain levels."""


app.command()(audit.audit)
app.command()(swap.swap)
app.command()(explain.explain)
