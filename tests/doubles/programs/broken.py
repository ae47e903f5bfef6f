"""Says why it cannot start, and ends."""

from __future__ import annotations

import sys

from tie.servicekit import logs


def main() -> None:
    logs.configure("broken")
    logs.logger().error("start.refused", reason="bundle.toml: is not there")
    sys.exit(7)


if __name__ == "__main__":
    main()
