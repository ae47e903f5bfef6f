"""The Inference Engine: a node that serves foundation models and keeps nothing of what it serves."""
