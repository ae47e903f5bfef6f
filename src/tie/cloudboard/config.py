"""cloudboardd's section of the node's configuration file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tie.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CloudboardConfig:
    """Times in seconds. Defaults are the contract's."""

    listen: str = "127.0.0.1:0"
    """host:port, or "unix:/path". The address that was bound is written to the run directory."""
    pool_size: int = 3
    """Pairs of helper and app kept warm."""
    max_pairs: int = 64
    """Pairs alive at one time, warm ones included: the node's capacity."""
    max_streams: int = 256
    """Open calls, idle ones included."""
    pair_max_wait_s: float = 600
    """A warm pair older than this is replaced."""
    pair_warmup_s: float = 60
    """A pair that is not warm by then is given up."""
    pair_wait_s: float = 60
    """The longest that an admitted request waits for a pair of its own."""
    refill_delay_s: float = 1
    """While a request is served and a warm pair is left, the next one is started this much later."""
    key_rotation_s: float = 43200
    key_lifetime_s: float = 86400
    key_grace_s: float = 300
    setup_timeout_s: float = 10
    upload_timeout_s: float = 60
    request_timeout_s: float = 900
    idle_timeout_s: float = 30
    drain_timeout_s: float = 30

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value < 0:
                raise ConfigError(f"[cloudboardd] {field.name} is {value}, it must not be negative")
        if not 0 < self.pool_size <= self.max_pairs <= self.max_streams:
            raise ConfigError(
                f"[cloudboardd] needs 0 < pool_size ({self.pool_size}) <= max_pairs ({self.max_pairs}) "
                f"<= max_streams ({self.max_streams})"
            )
        if self.key_rotation_s > self.key_lifetime_s:
            raise ConfigError("[cloudboardd] key_rotation_s is longer than key_lifetime_s")
