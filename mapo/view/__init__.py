"""The viewer: a local web page over run directories (`mapo view`).

    index/      finds runs; keeps location and numbers of every dialogue in SQLite, updated as files grow
    pages/      the pages of runs, dialogues, ablations and benchmarks, and their charts as plain data
    templates/  HTML; static/ styles and scripts
    app.py      routes; guard.py access control; serve.py the server

Nothing is written into a run directory. Run directories are untrusted: their texts are escaped on every page.
"""
