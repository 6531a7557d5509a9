"""The local engine: dialogues sampled, credited and learnt from on one machine."""
