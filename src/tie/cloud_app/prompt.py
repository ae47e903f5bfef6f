"""A checked request's prompt as token ids that fit the model's context."""

from __future__ import annotations

from tie.catalog import TokenizerDescription
from tie.cloud_app.failures import PromptTooLong
from tie.cloud_app.intake import ChatPrompt, RawPrompt, Request, ValuesPrompt
from tie.contracts.errors import InvalidRequest
from tie.prompting.encoding import MoreThanFits, encode
from tie.prompting.errors import LiteralRefused, TemplateFailed
from tie.prompting.templates import Piece, Templates
from tie.prompting.tokenizers import Tokenizer


def prompt_tokens(
    request: Request,
    *,
    templates: Templates,
    tokenizer: Tokenizer,
    described: TokenizerDescription,
    context_length: int,
) -> list[int]:
    """At least one id, at most `context_length`.

    Raises InvalidRequest (a template refused, a text that cannot be spelled, no token to begin with), PromptTooLong.
    """
    where = _field(request)
    try:
        pieces = _pieces(request, templates, described)
        ids = encode(tokenizer, pieces, bos_token_id=described.bos_token_id, limit=context_length)
    except (TemplateFailed, LiteralRefused) as error:
        raise InvalidRequest(where, str(error)) from None
    except MoreThanFits as error:
        raise PromptTooLong(
            where, f"has about {error.tokens} tokens, the model's context holds {context_length}"
        ) from None
    if len(ids) > context_length:
        raise PromptTooLong(where, f"has {len(ids)} tokens, the model's context holds {context_length}")
    if ids:
        return ids
    if described.bos_token_id is None:
        raise InvalidRequest(where, "is empty, and the model has no token that begins a text")
    return [described.bos_token_id]


def _pieces(request: Request, templates: Templates, described: TokenizerDescription) -> list[Piece]:
    match request.prompt:
        case ChatPrompt(messages):
            return templates.render_chat(messages, request.tools.offered)
        case ValuesPrompt(template_id, values):
            return templates.render_values(template_id, values)
        case RawPrompt(text):
            begin: list[Piece] = (
                [described.bos_token_id] if described.add_bos and described.bos_token_id is not None else []
            )
            return [*begin, text]


def _field(request: Request) -> str:
    match request.prompt:
        case ChatPrompt():
            return "chat"
        case ValuesPrompt():
            return "template_prompt"
        case RawPrompt():
            return "raw_text"
