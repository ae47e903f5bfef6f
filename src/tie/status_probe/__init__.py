"""`tie-status-probe`: says whether the runtime serves, and ends it in good order."""
