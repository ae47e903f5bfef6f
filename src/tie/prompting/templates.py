"""The templates of a signed bundle, compiled once and rendered for one request.

A rendering is a sequence of *pieces*: an integer is a control token that the template itself wrote, a string is
literal text, of the template, the user or both. How text becomes tokens is `encoding`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, meta, nodes

from tie.prompting import chat
from tie.prompting.budget import MAX_STRING_CHARS, Budget
from tie.prompting.chat import Message, Tool
from tie.prompting.controls import Controls
from tie.prompting.errors import TemplateFailed, TemplateOverBudget, TemplateRejected
from tie.prompting.marking import Trusted, Twins, mark_template
from tie.prompting.sandbox import Sandbox, instrument

Piece = str | int

MAX_TEMPLATE_CHARS: Final = 256 * 1024
ROLES: Final = ("system", "user", "assistant", "tool")
CHAT_VARIABLES: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
OWN_VARIABLES: Final = CHAT_VARIABLES | {"bos_token", "eos_token"}
"""Names that no value of a request may take."""


class CompiledTemplate:
    """One template. `render` may be called again and again, by one thread at a time."""

    def __init__(self, source: str, controls: Controls, twins: Twins, *, is_chat: bool) -> None:
        """Raises TemplateRejected; the message holds a line number, never the source."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateRejected(f"a template of {len(source)} characters exceeds the limit of {MAX_TEMPLATE_CHARS}")
        self._sandbox = Sandbox(Undefined if is_chat else StrictUndefined)
        self._sandbox.steps_per_pass = 1 + len(source) // 1024
        self._controls = controls
        self._twins = twins
        try:
            parsed = self._sandbox.parse(source)
            self.parameters = frozenset(meta.find_undeclared_variables(parsed)) - self._sandbox.globals.keys()
            self._parsed_source = source
            self._template = self._compile(parsed)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            raise TemplateRejected(f"a template does not compile: {type(error).__name__} at line {line}") from None
        except RecursionError:
            raise TemplateRejected("a template does not compile: it is nested too deeply") from None

    def render(self, values: Mapping[str, object], user_texts: Iterable[str]) -> list[Piece]:
        """`user_texts` are all strings within `values` that are not ours.

        Raises TemplateFailed, TemplateOverBudget.
        """
        while any(map(self._twins.occur_in, user_texts := tuple(user_texts))):
            self._twins = self._twins.redrawn()
            self._template = self._compile(self._sandbox.parse(self._parsed_source))
        self._sandbox.budget = Budget()
        try:
            text = self._run({name: self._ours(value) for name, value in values.items()})
        finally:
            self._sandbox.budget = None
        return pieces(text, self._controls, self._twins)

    def _run(self, values: Mapping[str, object]) -> str:
        written, chars = [], 0
        try:
            for part in self._template.generate(**values):
                chars += len(part)
                if chars > MAX_STRING_CHARS:
                    raise TemplateOverBudget(f"the template writes more than {MAX_STRING_CHARS} characters")
                written.append(part)
        except TemplateFailed:
            raise
        except RecursionError:
            raise TemplateOverBudget("the template calls itself too deeply") from None
        except (OverflowError, MemoryError):
            raise TemplateOverBudget("the template asks for more than the sandbox gives") from None
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            # what a template can run into with values it did not expect; the text of the error may quote them
            raise TemplateFailed(f"the bundle's template failed on these values: {type(error).__name__}") from None
        return "".join(written)

    def _compile(self, parsed: nodes.Template) -> Template:
        mark_template(parsed, self._controls, self._twins)
        instrument(parsed, self._sandbox)
        code = self._sandbox.compile(parsed)
        return Template.from_code(self._sandbox, code, self._sandbox.make_globals(None))

    def _ours(self, value: object) -> object:
        """Words of ours, however deep, as trusted words in this rendering's twins."""
        match value:
            case OurWord():
                return Trusted(value, self._twins)
            case list():
                return [self._ours(item) for item in value]
            case dict():
                return {key: self._ours(item) for key, item in value.items()}
            case _:
                return value


class OurWord(str):
    """A role's name, or the spelling of a control token: not from the request."""


class Templates:
    """All templates of one bundle, by id."""

    def __init__(
        self,
        sources: Mapping[str, str],
        controls: Controls,
        *,
        chat_template: str | None,
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        alphabet = {*"".join(controls.spellings), *"".join(ROLES), *_WHITE_SPACE}
        twins = Twins(alphabet)
        self._compiled = {
            name: CompiledTemplate(source, controls, twins, is_chat=name == chat_template)
            for name, source in sources.items()
        }
        self._chat_template = chat_template
        self._always = {"bos_token": OurWord(bos_token), "eos_token": OurWord(eos_token)}

    @property
    def has_chat(self) -> bool:
        return self._chat_template is not None

    def parameters(self, template_id: str) -> frozenset[str] | None:
        """The values that a template for named values takes; None when the bundle has no such template."""
        if template_id == self._chat_template or template_id not in self._compiled:
            return None
        return self._compiled[template_id].parameters - OWN_VARIABLES

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Piece]:
        """Ready for the assistant's answer. Raises TemplateFailed, TemplateOverBudget."""
        assert self._chat_template is not None, "the caller asked has_chat"
        values = {
            "messages": [chat.row(message, OurWord(message.role)) for message in messages],
            "tools": chat.offered(tools),
            "documents": None,
            "add_generation_prompt": True,
            **self._always,
        }
        return self._compiled[self._chat_template].render(values, chat.texts(messages, tools))

    def render_values(self, template_id: str, values: Mapping[str, str]) -> list[Piece]:
        """Raises KeyError without such a template, TemplateFailed (a value missing, too), TemplateOverBudget."""
        return self._compiled[template_id].render({**values, **self._always}, values.values())


def pieces(text: str, controls: Controls, twins: Twins) -> list[Piece]:
    """A rendering's output, taken apart: control tokens only where the template itself spelled them."""
    found: list[Piece] = []
    for is_ours, run in twins.runs(text):
        for piece in controls.split(run) if is_ours else (run,):
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
    return found


_WHITE_SPACE: Final = " \t\n\r\f\v"
