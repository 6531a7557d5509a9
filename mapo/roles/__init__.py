"""Roles learned from recordings: what a recorded cast did is training data for a local model.

recordings.py  splits.py                 dialogues from any source; what is trained on and what is held out
examples.py  packing.py  additions.py    prompts and answers of a role; token rows; worthless replies
learning.py                              the training loop
kinds.py                                 what differs between judge, user and director
agreement.py  probes.py  replay.py       what the trained role is measured by
verdict.py                               what it is fit for
run.py                                   a whole run, from recordings to a model folder
"""
