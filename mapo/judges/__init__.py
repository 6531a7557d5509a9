"""Judges under audit: how much of a judge's levels is noise, what biases it, and with whom it agrees.

`sample.py` picks recorded turns, `terms.py` says how their levels become credit. `audit/` changes turns
(`probes.py`), has the judges fill in their forms again (`ask.py`), measures the answers (`measure.py` with
`noise.py`, `effects.py`, `between.py` and `evidence.py`) and says what a judge is fit for (`verdict.py`);
`report.py` and `figure.py` show it, `recorded.py` needs no judge at all. `swap/` has whole runs judged again
by another judge. Needs no torch; docs/judges.md explains every number.
"""
