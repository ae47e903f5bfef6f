"""One job over the connection that the service manager accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tie.cloud_app.config import Config
from tie.cloud_app.serving import Serving
from tie.cloud_app.wire import JobChannel
from tie.servicekit import peers
from tie.servicekit.config import NodeConfig
from tie.servicekit.listening import accepted_connection

if TYPE_CHECKING:
    from tie.cloud_app.warmup import Warmed


def serve_connection(node: NodeConfig, config: Config) -> bool:
    """Raises ConfigError without exactly one passed connection, NotAdmitted for a foreign peer."""
    connection = accepted_connection()
    peers.admit(connection, node.admitted_uids)

    def warm_up() -> Warmed:
        from tie.cloud_app import rehearsal, running, warmup  # noqa: F401  # all that a request needs, heavy libraries too

        warmed = warmup.warm_up(node)
        rehearsal.rehearse(warmed)
        return warmed

    return Serving(JobChannel(connection), warm_up, config).run()
