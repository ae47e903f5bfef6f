"""The only field names that a log line may carry. None can hold a prompt, token, grammar or key."""

from __future__ import annotations

from typing import Final

FIELDS: Final = frozenset(
    {
        # what happened, to which process
        "reason", "outcome", "state", "previous_state", "process", "pid", "exit_code", "signal", "uid", "path",
        "address", "attempt", "kind", "status", "field", "limit", "observed", "stage", "version", "name", "release",
        "identity", "key_number", "error_type", "errno", "location",
        # counts, sizes and times of a request, never its content
        "prompt_tokens", "completion_tokens", "request_bytes", "response_messages", "choices", "in_flight", "queued",
        "warm", "count", "bytes", "elapsed_ms", "deadline_ms", "warmup_ms", "wait_ms", "intake_ms", "prompt_ms",
        "dispatch_ms", "first_token_ms", "decode_ms", "seal_ms", "open_ms", "total_ms", "steps", "block_count",
        "blocks_free", "threads", "isa", "stop_ms", "start_ms", "lease_ms", "job",
    }
)  # fmt: skip
