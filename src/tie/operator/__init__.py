"""`tiectl`: what an operator sees of a node and may ask of it."""
