"""tie-cloud-app: one process that serves one request and ends with it."""
