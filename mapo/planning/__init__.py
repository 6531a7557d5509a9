"""Estimates made before machines are rented: the least time of a training step, its bottleneck,
and the replicas each role needs.

`rates.py` reads what servers can do and what calls cost; `measured.py` derives the same from a finished run;
`demand.py` adds up the work of one step per role; `plan.py` turns it into lower bounds and a recommendation;
`table.py` prints them.
"""
