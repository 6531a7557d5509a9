"""Reading runs that anybody may have written: for scores, the viewer and reports.

files.py      bytes, JSON and lines: no link is followed, no device opened, every size is bounded
kind.py       what a folder is
contents.py   what the files of a run say: settings, ledger, rubric, results; which record counts
training.py   a whole training run
claim.py      whether a folder is free for a run, or holds the same one
"""
