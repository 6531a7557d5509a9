"""mapo eval: evaluate a model with a benchmark."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.evaluate import emobench, empa, eqbench

app = commands("Evaluate a model with a benchmark.")


@app.callback()
def main() -> None:
    """Evaluate a model with a benchmark."""


app.command()(empa.empa)
app.command()(emobench.emobench)
app.command()(eqbench.eqbench)
