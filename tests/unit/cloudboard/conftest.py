"""Log lines of the code under test go through the check of field names and then nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tie.servicekit import logs


@pytest.fixture(autouse=True)
def _checked_logs() -> Iterator[None]:
    logs.configure("test", "debug")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()
