"""EMPA's own prompts, taken at run time from the published package `empa` in the user's environment.

The package is licensed CC BY-NC, so mapo contains none of its text: it is imported, only when a command line
or config asks for it (`--prompts empa`), and its own agents write every prompt. `package.py` imports it and
reads the requests that its agents make, `roles.py` plays user, director, judge and policy with them,
`cards.py` reads the cards and the start file, and `prompts.py` puts these together.
"""
