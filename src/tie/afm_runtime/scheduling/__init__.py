"""Which requests run, and what each step of theirs computes."""
