"""Every bound of the contracts, once. Sizes in bytes unless the name says otherwise."""

from __future__ import annotations

from typing import Final

RESPONSE_BUCKETS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Sizes that a serialized InferenceResponse may have."""
REQUEST_BUCKETS: Final = tuple(1 << n for n in range(10, 24))
"""Sizes that a client pads a serialized InferenceRequest to, up to 8 MiB; larger ones go as they are."""

MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024 + 1024
"""A frame on the job socket: one message and its envelope."""

MAX_REQUEST_ID_BYTES: Final = 128
MAX_TRACE_ID_BYTES: Final = 64
MAX_NAME_BYTES: Final = 64
MAX_MESSAGES: Final = 512
MAX_PARTS_PER_MESSAGE: Final = 64
MAX_TEMPLATE_VALUES: Final = 64
MAX_STOP_STRINGS: Final = 16
MAX_STOP_STRING_BYTES: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64
MAX_LOGIT_BIASES: Final = 1024
MAX_LOGPROBS: Final = 20
MAX_CHOICES: Final = 8
MAX_EARLIER_TURNS: Final = 64
MAX_TOOLS: Final = 64
MAX_TOOL_DESCRIPTION_BYTES: Final = 16 * 1024
MAX_TOOL_SCHEMA_BYTES: Final = 64 * 1024
MAX_TOOL_SCHEMA_DEPTH: Final = 192
"""Of the JSON; a schema within a schema takes two levels of it, and 64 of those are read."""
MAX_TOOL_CALLS: Final = 64
"""Of one message."""
MAX_TOOL_CALL_ID_BYTES: Final = 64
MAX_ARGUMENTS_BYTES: Final = 64 * 1024
"""Of one earlier call."""
MAX_ARGUMENTS_DEPTH: Final = 64
MAX_TOKENS_LIMIT: Final = 1 << 20
MAX_PARAMS_BYTES: Final = 256 * 1024
"""A serialized GenerateParams."""

TICKET_BYTES: Final = 16
KEY_ID_BYTES: Final = 32
KV_REQUEST_KEY_BYTES: Final = 32
MAX_LEASE_MS: Final = 5000
MAX_LINK_MESSAGE_BYTES: Final = 4096
MAX_CONTROL_MESSAGE_BYTES: Final = 128 * 1024
"""Of one packet: a registered prompt of 30,000 tokens and more."""
