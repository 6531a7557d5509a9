"""The web page over run directories: runs, curves, dialogues, and why each turn was credited (`mapo view`).

    files.py    which folders are runs, and reading from them without leaving them
    facts.py    what a run is and how it stands, from its small files
    database.py the SQLite file of the index
    index.py    every dialogue's place and few numbers in SQLite, kept up as files grow
    queries.py  what the pages ask the index
    talk.py     one dialogue with its credit;  credit.py  the credit of a step
    curves.py   figures as plain data;  bench.py  scores by category, axis and difficulty
    app.py      the pages;  guard.py  who may see them;  serve.py  the server

Nothing is written into a run directory. What models wrote is text: escaped on every page, executed nowhere.
"""
