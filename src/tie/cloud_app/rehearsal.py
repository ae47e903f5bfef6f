"""Takes a small request through everything but the runtime, so that the real one meets nothing for the first time."""

from __future__ import annotations

import contextlib
import ctypes
import gc

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2
from tie.cloud_app.deadline import Deadline
from tie.cloud_app.dispatch import generate_params
from tie.cloud_app.intake import parse_request
from tie.cloud_app.padding import pad
from tie.cloud_app.prompt import prompt_tokens
from tie.cloud_app.reply import Answer
from tie.cloud_app.warmup import Warmed
from tie.contracts.errors import InvalidRequest


def rehearse(warmed: Warmed) -> None:
    """Afterwards memory is given back that loading took, and garbage collections leave out all that exists."""
    asked = inference_pb2.InferenceRequest(request_id="rehearsal")
    if warmed.templates.has_chat:
        asked.chat.messages.add(role=inference_pb2.ROLE_USER).parts.add(text="Warm up.")
    else:
        asked.raw_text = "Warm up."
    with contextlib.suppress(InvalidRequest):  # a template that takes no such message: it has been tried
        request = parse_request(asked.SerializeToString(), warmed.offer)
        tokens = prompt_tokens(
            request,
            templates=warmed.templates,
            tokenizer=warmed.tokenizer,
            described=warmed.described.tokenizer,
            context_length=warmed.context_length,
        )
        generate_params(request, warmed, 1, Deadline(1.0)).SerializeToString()
        event = afm_pb2.GenerateEvent(runs=[afm_pb2.TokenRun(count=1)])
        event.finishes.add(reason=afm_pb2.FINISH_REASON_LENGTH)
        for response in Answer(request, warmed.tokenizer, len(tokens)).take(tokens[-1:], event):
            pad(response.SerializeToString())
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)
