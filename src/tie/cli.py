"""The command `tie`: bundles (import, inspect) and the local node (up, status, down) under one name.

It stands above both packages because neither may import the other.
"""

from __future__ import annotations

import typer

from tie.bundling.cli import register as register_bundling
from tie.node.cli import register as register_node


def main() -> None:
    """Entry point of the console script."""
    app = typer.Typer(
        name="tie",
        help="Run a node of The Inference Engine on this machine, and make the model bundles that it serves.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    register_node(app)
    register_bundling(app)
    app()
