"""How to call a service, one module each."""
