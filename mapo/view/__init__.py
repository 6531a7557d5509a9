"""The web page over run directories: runs, curves, dialogues, and why each turn was credited (`mapo view`).

    index/      which folders are runs, what they are and how they stand; every dialogue's place and a few
                numbers in SQLite, kept up to date as files grow; the queries of the pages
    pages/      the pages of runs, dialogues and benchmarks, and their figures as plain data
    templates/  their HTML; static/ their style and scripts
    app.py      the routes; guard.py access control; serve.py the server

Nothing is written into a run directory. What models wrote is text: escaped on every page, executed nowhere.
"""
