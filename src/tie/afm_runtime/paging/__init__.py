"""Who owns which block of the cache."""
