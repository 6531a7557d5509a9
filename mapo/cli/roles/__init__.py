"""mapo roles: train models to play roles, and compare simulated users with real ones."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.roles import fidelity, train

app = commands("Train models to play roles, and compare simulated users with real ones.")


@app.callback()
def main() -> None:
    """Train models to play roles, and compare simulated users with real ones."""


app.command()(train.train)
app.command()(fidelity.fidelity)
