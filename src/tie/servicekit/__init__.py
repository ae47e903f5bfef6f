"""The shell that every daemon wears: configuration, listening, peer credentials, logs, deadlines, readiness."""
