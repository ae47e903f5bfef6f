"""`tie-model-owner`: keeps weights and the prefix pool while runtimes come and go."""
