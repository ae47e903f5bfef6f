"""Tiny stand-ins for a node's processes, started by a real supervisord with the real command line."""
