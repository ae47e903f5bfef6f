"""Makes model bundles out of what models are published as (`tie import`), and shows them (`tie inspect`)."""
