"""mapo eval: any model through a benchmark."""

from __future__ import annotations

from mapo.cli.common.help import commands
from mapo.cli.evaluate import emobench, empa, eqbench

app = commands("Put any model through a benchmark.")


@app.callback()
def main() -> None:
    """Put any model through a benchmark."""


app.command()(empa.empa)
app.command()(emobench.emobench)
app.command()(eqbench.eqbench)
