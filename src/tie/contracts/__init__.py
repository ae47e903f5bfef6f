"""What two processes must agree on. Values only: nothing here does I/O or imports another package of ours."""
