"""Before machines are rented: how long a step takes, who holds it up, how many replicas a role needs.

`rates.py` says what servers can do and what calls ask of them; `measured.py` reads the same from a finished
run; `load.py` draws the dialogues of a step as routes from server to server; `simulate.py` plays them
through; `bounds.py` computes by hand what no simulation can beat; `plan.py` puts it together.
"""
