"""The constraint of a request, checked and compiled here, so that the runtime only executes."""

from __future__ import annotations

from tie.api.inference.v1 import inference_pb2
from tie.contracts.errors import InvalidRequest, Unsupported


def compiled(asked: inference_pb2.Constraint) -> str:
    """The runtime's text form. Raises InvalidRequest or Unsupported with keyword and place."""
    # Late: few requests bring one, and every app would pay for the import.
    from tie.constraints import compiling

    match asked.WhichOneof("constraint"):
        case "json_schema":
            return compiling.from_json_schema(asked.json_schema)
        case "regex":
            return compiling.from_regex(asked.regex)
        case "choices":
            return compiling.from_choices(asked.choices.choices)
        case "gbnf":
            return compiling.from_gbnf(asked.gbnf)
        case "lark":
            return compiling.from_lark(asked.lark)
        case "fragment":
            raise Unsupported("constraint.fragment", "is not offered by this node")
        case _:
            raise InvalidRequest("constraint", "is empty: one of json_schema, regex, choices, gbnf, lark, fragment")
