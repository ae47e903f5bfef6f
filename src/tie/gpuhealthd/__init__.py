"""`gpuhealthd`: watches the GPUs and says whether they can be trusted with work."""
