"""Training on verl: sandbox, rewards, estimator and records from mapo; Ray, sharding, vLLM or SGLang, weight
synchronisation and checkpoints from verl.

    plugin.py     registers the estimators in every verl process
    estimator.py  token rewards and masks -> turns -> `mapo.advantages` -> token advantages
    dialogue.py   the agent loop: `play()` with verl's token server as the policy
    row.py        a dialogue -> the single row verl trains on
    worker.py     state shared by the dialogues of one process: roles, records, limits
    records.py    reading and writing the run directory from the trainer
    adapter.py    LoRA checkpoints of verl -> adapter folders
    trainer.py    verl's synchronous trainer with mapo's metrics, masks and scores
    table.py      scenarios -> the tables verl reads prompts from
    settings.py   a mapo config -> verl settings
    launch.py     one run, from its directory to its summary

This file imports nothing, so that the command line works where verl is not installed.
"""
