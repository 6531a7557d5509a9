"""mapo roles: compare simulated users with real ones."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.roles import fidelity

app = commands("Compare simulated users with real ones.")


@app.callback()
def main() -> None:
    """Compare simulated users with real ones."""


app.command()(fidelity.fidelity)
