"""`tie-controllerd`: decides when the node serves, recycles and rests."""
