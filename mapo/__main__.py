"""python -m mapo"""

from mapo.cli import run

run()
