"""Judges under audit: how much of a judge's word is noise, what moves it that should not, whom it agrees
with.

The story: `sample.py` picks recorded turns, `probes.py` changes them, `ask.py` has the judges fill in their
forms again, `measure.py` makes numbers of the answers by the runs' own `terms.py` (`noise.py`, `effects.py`,
`agreement.py`, `evidence.py`), `verdict.py` says what a judge is fit for, `report.py` and `figure.py` show
it. `swap.py` judges whole runs again with another judge; `recorded.py` says what records alone can tell.
Needs no torch; docs/judges.md explains every number.
"""
