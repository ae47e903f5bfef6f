"""When a completion ends."""
