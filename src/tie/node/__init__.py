"""Runs a whole node on one machine, unprivileged and without systemd: starts processes, watches them, stops them."""
