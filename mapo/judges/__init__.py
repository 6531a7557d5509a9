"""Judge quality: noise, bias and agreement of judges, and rejudging finished runs.

`sample.py` selects recorded turns; `credit.py` determines how their levels become advantages. `audit/` asks
judges about recorded and modified turns (`probes.py`, `questions.py`), measures the answers (`measure.py`
with `noise.py`, `effects.py`, `judge_agreement.py` and `evidence.py`) and rates each judge (`verdict.py`);
`report.py` and `figure.py` present the result. `recorded.py` works from records alone, without asking a
judge. `swap/` rejudges whole runs with another judge. None of it needs torch. docs/judges.md explains every
number.
"""
