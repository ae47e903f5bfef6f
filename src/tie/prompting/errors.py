"""What can go wrong between a request's words and token ids. No message holds a word of either."""

from __future__ import annotations

from tie.contracts.errors import TieError


class TokenizerRejected(TieError):
    """The bundle's tokenizer file is malformed, or does what literal text cannot survive; nothing can be encoded."""


class TemplateRejected(TieError):
    """A template of the bundle does not compile, or uses what the sandbox does not offer."""


class TemplateFailed(TieError):
    """A template refused the values it was given, or stumbled over them."""


class TemplateOverBudget(TemplateFailed):
    """A template did more work, or wrote more, than one request may cost."""


class LiteralRefused(TieError):
    """The model's vocabulary cannot spell this text, or only as a control token."""
