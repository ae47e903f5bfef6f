"""The options of `tie-vre`, once: which node, and how to choose tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tie.api.inference.v1 import inference_pb2
from tie.contracts.errors import InvalidRequest
from tie.vre.asking import read_file
from tie.vre.client import ANSWER_DEADLINE_S
from tie.vre.locate import Target, locate
from tie.vre.request import Sampling
from tie.vre.tools import Tool, read_tools


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Taken before and after the command's name; what stands after it wins."""

    run_dir: Annotated[
        Path | None,
        typer.Option(help="Run directory of a local node. Default: $TIE_RUN_DIR, $XDG_RUNTIME_DIR/tie, /tmp/tie-UID."),
    ] = None
    node: Annotated[str | None, typer.Option(help="Address of a node, HOST:PORT or unix:/PATH.")] = None
    allow_development_attestation: Annotated[
        bool,
        typer.Option(
            "--allow-development-attestation",
            help="Accept an attestation that proves nothing. Implied for a local node whose run directory is ours.",
        ),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False

    def over(self, before: NodeOptions) -> NodeOptions:
        """These, and where they are silent those that stood before the command."""
        names_node = self.run_dir is not None or self.node is not None
        return NodeOptions(
            self.run_dir if names_node else before.run_dir,
            self.node if names_node else before.node,
            self.allow_development_attestation or before.allow_development_attestation,
            self.json or before.json,
        )

    def target(self, environment: Mapping[str, str] = os.environ) -> Target:
        """Raises InvalidRequest, or NodeUnreachable where no node serves."""
        if self.run_dir is not None and self.node is not None:
            raise InvalidRequest("--node", "and --run-dir each name a node: give one")
        return locate(self.run_dir, self.node, environment, allow_development=self.allow_development_attestation)


@dataclass(frozen=True, slots=True, repr=False)
class SamplingOptions:
    """Greedy unless a temperature is given; what is not given is the node's choice."""

    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens that reach this.")] = None
    top_k: Annotated[int | None, typer.Option(help="Sample from this many likeliest tokens.")] = None
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest one.")] = None
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of a choice.")] = None
    min_tokens: Annotated[int | None, typer.Option(help="No end of a choice before this many tokens.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None
    stop_token_id: Annotated[list[int] | None, typer.Option(help="End at this token; may be repeated.")] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: what occurred becomes less likely.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Taken once from a token that occurred.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="Taken for each time that a token occurred.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=VALUE", help="Added to a token's logit; may be repeated.")
    ] = None
    n: Annotated[int | None, typer.Option("--n", help="Number of choices.")] = None
    logprobs: Annotated[
        int | None, typer.Option(help="Log-probabilities of each token and this many others; shown with --json.")
    ] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end.")] = False

    def sampling(self) -> Sampling:
        """Raises InvalidRequest where an option is no number at all; ranges are the node's to check."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_biases(self.logit_bias),
            seed=self.seed,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            n=self.n,
            stop=self.stop or (),
            stop_token_ids=self.stop_token_id or (),
            logprobs=self.logprobs,
        )


@dataclass(frozen=True, slots=True, repr=False)
class RequestOptions:
    """What belongs to every request beside its prompt."""

    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None
    model: Annotated[str, typer.Option(help="Name of the model.", show_default="the node's")] = ""
    adapter: Annotated[str, typer.Option(help="Name of one of the model's adapters.", show_default="none")] = ""
    background: Annotated[bool, typer.Option("--background", help="Work that can wait: others come first.")] = False
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a whole answer.")] = ANSWER_DEADLINE_S


@dataclass(frozen=True, slots=True, repr=False)
class ConstraintOptions:
    """What the answer must keep to: one of these at most."""

    json_schema: Annotated[Path | None, typer.Option(help="Answer in JSON that satisfies this file's schema.")] = None
    regex: Annotated[str | None, typer.Option(help="Answer in text that this matches as a whole.")] = None
    choice: Annotated[list[str] | None, typer.Option(help="Answer with one of these; may be repeated.")] = None
    gbnf: Annotated[Path | None, typer.Option(help="Answer in the language of this file's GBNF grammar.")] = None
    lark: Annotated[Path | None, typer.Option(help="Answer in the language of this file's Lark grammar.")] = None

    def constraint(self) -> inference_pb2.Constraint | None:
        """Raises InvalidRequest."""
        files = {"json_schema": self.json_schema, "gbnf": self.gbnf, "lark": self.lark}
        given = {name: read_file(f"constraint.{name}", path) for name, path in files.items() if path is not None}
        if self.regex is not None:
            given["regex"] = self.regex
        if len(given) + bool(self.choice) > 1:
            raise InvalidRequest("--json-schema, --regex, --choice, --gbnf, --lark", "exclude each other")
        if self.choice:
            return inference_pb2.Constraint(choices=inference_pb2.ChoiceList(choices=self.choice))
        constraint = inference_pb2.Constraint()
        for name, text in given.items():
            setattr(constraint, name, text)
        return constraint if given else None


@dataclass(frozen=True, slots=True, repr=False)
class ToolOptions:
    """What the model may call."""

    tools: Annotated[
        Path | None, typer.Option(help="A JSON list of tools: name, description, parameters (a JSON Schema).")
    ] = None
    tool_choice: Annotated[
        str, typer.Option(metavar="auto|none|required|NAME", help="Whether to call one.", show_default="auto")
    ] = ""

    def offered(self) -> list[Tool]:
        """Raises InvalidRequest."""
        return read_tools(read_file("tools", self.tools), "tools") if self.tools is not None else []

    @property
    def is_given(self) -> bool:
        return self.tools is not None or bool(self.tool_choice)


def _biases(entries: list[str] | None) -> dict[int, float]:
    biases: dict[int, float] = {}
    for entry in entries or ():
        token_id, _, value = entry.partition("=")
        try:
            biases[int(token_id)] = float(value)
        except ValueError:
            raise InvalidRequest("sampling.logit_bias", "each must be ID=VALUE, an integer and a number") from None
    return biases
