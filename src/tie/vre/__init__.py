"""The device's side: verifies a node's attestation, seals a request to it, opens the answer as it streams.

`Client` blocks, `AsyncClient` is for asyncio; both speak in the same typed events. The command is `tie-vre`.
"""

from tie.vre.aio import AsyncAnswer, AsyncClient
from tie.vre.attestation import AttestationRefused, NodeKey
from tie.vre.client import Answer, Client
from tie.vre.collected import Choice, Collected
from tie.vre.errors import BadAnswer, CallFailed, NodeUnreachable, VreError
from tie.vre.events import Delta, Event, Finish, NodeError, Progress, TokenLogprob, ToolCallDelta, Truncated, Usage
from tie.vre.locate import Target, locate
from tie.vre.request import ChatMessage, Sampling, chat_request, raw_request
from tie.vre.tools import Tool, ToolCall

__all__ = [
    "Answer",
    "AsyncAnswer",
    "AsyncClient",
    "AttestationRefused",
    "BadAnswer",
    "CallFailed",
    "ChatMessage",
    "Choice",
    "Client",
    "Collected",
    "Delta",
    "Event",
    "Finish",
    "NodeError",
    "NodeKey",
    "NodeUnreachable",
    "Progress",
    "Sampling",
    "Target",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Truncated",
    "Usage",
    "VreError",
    "chat_request",
    "locate",
    "raw_request",
]
