"""The same job on verl: Ray, sharding, vLLM or SGLang, weight sync and checkpoints are verl's; sandbox,
rewards, estimator and records are ours.

    plugin.py     what verl loads in each of its processes: our estimators by name
    estimator.py  token rewards and masks -> turns -> `mapo.advantages` -> token advantages
    dialogue.py   the agent loop: `play()` with verl's token server as the policy
    row.py        a dialogue -> the one row verl trains on
    site.py       what the dialogues of one process share: roles, records, limits
    records.py    the run directory, as the trainer writes and reads it
    trainer.py    verl's synchronous trainer, with our metrics, masks and scores
    table.py      scenarios -> the table verl reads its prompts from
    settings.py   our config -> verl's settings
    launch.py     one run, from its folder to its summary

This file imports nothing, so that the command line can ask for the engine where verl is not installed.
"""
