"""Where templates of signed bundles run: no files, no attributes of ours, and a budget for what they do.

Jinja's immutable sandbox keeps a template from reaching out; the rest is here. Every loop pass, call, operator and
filter spends from the budget of the rendering, and only methods and filters whose cost follows from what they are given
exist at all. Behaviour is otherwise that of chat templates elsewhere: trimmed blocks, `break` and `continue`,
`tojson` that escapes nothing, `raise_exception`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from jinja2 import BaseLoader, nodes
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tie.prompting.budget import MAX_INTEGER_BITS, Budget
from tie.prompting.errors import TemplateFailed, TemplateOverBudget

_FILTERS: Final = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "join",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "safe",
    "select", "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
_STR_METHODS: Final = frozenset(
    {
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
        "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines",
        "startswith", "strip", "title", "upper",
    }
)  # fmt: skip
_JINJAS_OWN_ARGUMENTS: Final = frozenset({"_block_vars", "_loop_vars"})
_WIDE_FORMAT: Final = re.compile(r"\d{4}|\*")


class Sandbox(ImmutableSandboxedEnvironment):
    """Set `budget` before each rendering; without one, as while compiling, nothing is counted."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self, undefined: type[Undefined] = Undefined) -> None:
        super().__init__(
            loader=_NoLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=undefined,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=self._written,
            auto_reload=False,
        )
        self.budget: Budget | None = None
        self.steps_per_pass = 1
        """Raised for long templates: one pass of a loop may write as much as the template holds."""
        allowed = {name: self._counting(self.filters[name]) for name in _FILTERS}
        self.filters = {**allowed, "replace": self._replace, "tojson": self._tojson}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals["raise_exception"] = _raise_exception

    def step(self) -> bool:
        """One pass of a loop."""
        self._spend().step(self.steps_per_pass)
        return True

    def join_all(self, *parts: object) -> str:
        """What the operator `~` does."""
        texts = [str(part) for part in parts]
        self._spend().size(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = self._spend()
        budget.step()
        if getattr(obj, "__name__", "") == "replace" and isinstance(owner := getattr(obj, "__self__", None), str):
            plain = {name: value for name, value in kwargs.items() if name not in _JINJAS_OWN_ARGUMENTS}
            return self._replace(owner, *args, **plain)
        result = super().call(context, obj, *args, **kwargs)
        budget.value(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._spend()
        budget.step()
        if operator == "**" or (operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left)):
            raise TemplateOverBudget("the template uses an operation without a bound")
        if operator == "*":
            _check_product(budget, left, right)
        result = super().call_binop(context, operator, left, right)
        budget.value(result)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is not offered: its widths know no bound."""

    def _spend(self) -> Budget:
        return self.budget or Budget()

    def _written(self, value: Any) -> Any:
        """What `{{ }}` is about to write."""
        if self.budget is not None:
            self.budget.step()
            self.budget.value(value)
        return value

    def _counting(self, filter_: Callable[..., Any]) -> Callable[..., Any]:
        at = 1 if hasattr(filter_, "jinja_pass_arg") else 0

        @functools.wraps(filter_)
        def counted(*args: Any, **kwargs: Any) -> Any:
            budget = self._spend()
            budget.step()
            subject = args[at]
            budget.value(subject)
            if isinstance(subject, Iterator):
                args = (*args[:at], budget.counted(subject), *args[at + 1 :])
            result = filter_(*args, **kwargs)
            budget.value(result)
            return budget.counted(result) if isinstance(result, Iterator) else result

        return counted

    def _replace(self, text: object, old: str, new: str, count: int | None = None) -> str:
        subject, before, after = str(text), str(old), str(new)
        found = len(subject) + 1 if not before else subject.count(before)
        self._spend().step(1 + len(subject) // 65536)
        self._spend().size(len(subject) + found * len(after))
        return subject.replace(before, after, -1 if count is None else count)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not 0 <= indent <= 16:
            raise TemplateFailed("the template indents by more than 16")
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=_no_json,
        )
        self._spend().value(text)
        return text


class _NoLoader(BaseLoader):
    """Templates are handed over as text: none includes, imports or extends another."""


def instrument(template: nodes.Template, sandbox: Sandbox) -> None:
    """Makes every loop pass and every `~` of `template` spend from the sandbox's budget. In place."""
    for loop in template.find_all(nodes.For):
        step = _method("step", [], sandbox, loop.lineno)
        loop.body.insert(0, nodes.ExprStmt(step, lineno=loop.lineno).set_environment(sandbox))
        if loop.test is not None:
            loop.test = nodes.And(step, loop.test, lineno=loop.lineno)
    for parent in [template, *template.find_all(nodes.Node)]:
        for name, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, name, _method("join_all", value.nodes, sandbox, value.lineno))
            elif isinstance(value, list):
                value[:] = [
                    _method("join_all", item.nodes, sandbox, item.lineno) if isinstance(item, nodes.Concat) else item
                    for item in value
                ]


def _method(name: str, arguments: list[nodes.Expr], sandbox: Sandbox, lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=lineno)
    call = nodes.Call(function, arguments, [], None, None, lineno=lineno)
    call.set_environment(sandbox)
    return call


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
            raise TemplateOverBudget(f"the template computes with more than {MAX_INTEGER_BITS} bits")
        return
    times, subject = (left, right) if isinstance(left, int) else (right, left)
    if isinstance(times, int) and isinstance(subject, str | list | tuple):
        budget.size(max(0, times) * len(subject))
        if not isinstance(subject, str):
            budget.step(max(0, times) * len(subject))


def _raise_exception(_: object = None) -> NoReturn:
    """The message may quote the request: it goes nowhere."""
    raise TemplateFailed("the bundle's template refuses these values")


def _no_json(_: object) -> NoReturn:
    raise TemplateFailed("the template writes something as JSON that is not")
