"""Reading run directories from untrusted sources, for scores, the viewer and reports.

files.py        bytes, JSON and lines: links are not followed, devices not opened, sizes bounded
kind.py         what kind of run a folder is
contents.py     settings, ledger, rubric and results of a run; which of several records counts
training.py     a complete training run
explanation.py  the credit of a turn in words
claim.py        whether a folder is free for a new run or contains the run to resume
"""
