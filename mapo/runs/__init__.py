"""Reading runs that anybody may have written: for the viewer and the report.

files.py    bytes, JSON and lines: no link is followed, no device opened, nothing without end is held
run.py      what a run's files say: settings, steps, ledger, rubric; which record of a dialogue counts
result.py   scores of a result.json in points of 100
"""
