"""`tie-vre`: asks a node, from the command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from tie.api.inference.v1 import inference_pb2
from tie.contracts.errors import InvalidRequest, TieError
from tie.vre import asking
from tie.vre.chat import Chat, Dialogue
from tie.vre.client import Client
from tie.vre.exits import Exit, table
from tie.vre.option_groups import grouped
from tie.vre.options import ConstraintOptions, NodeOptions, RequestOptions, SamplingOptions, ToolOptions
from tie.vre.printing import open_printer
from tie.vre.request import ChatMessage, chat_request, raw_request

app = typer.Typer(
    name="tie-vre",
    help="Ask a node: seal the request to the key that its attestation vouches for, and open the answer.",
    epilog=table(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
@grouped
def before(context: typer.Context, at: NodeOptions) -> None:
    context.obj = at


@app.command(epilog=table())
@grouped
def ask(
    context: typer.Context,
    *,
    prompt: Annotated[str | None, typer.Argument(help="What to ask.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Ask this file's text; - is standard input.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text to the model as it is, with no template.")] = False,
    wanted: RequestOptions,
    how: SamplingOptions,
    within: ConstraintOptions,
    having: ToolOptions,
    at: NodeOptions,
) -> None:
    """Ask once and show the answer as it comes; Ctrl-C cancels it on the node. Greedy unless a temperature is given."""
    at = at.over(context.obj)
    printer = open_printer(as_json=at.json, choices=how.n or 1)
    try:
        request = _request(asking.read_prompt(prompt, file), wanted, how, having, raw=raw)
        if (constraint := within.constraint()) is not None:
            request.constraint.CopyFrom(constraint)
        with asking.connect(at.target()) as client:
            code = asking.run(client.ask(request, timeout_s=wanted.timeout), printer)
    except TieError as error:
        code = asking.report(error, printer)
    raise typer.Exit(code)


@app.command(epilog=table())
@grouped
def chat(context: typer.Context, wanted: RequestOptions, how: SamplingOptions, at: NodeOptions) -> None:
    """Talk: the dialogue is kept here and sent whole with every turn. /reset, /system TEXT, /quit."""
    at = at.over(context.obj)
    try:
        with asking.connect(at.target()) as client:
            dialogue = Dialogue(wanted.system)
            names = wanted.model, wanted.adapter
            talk = Chat(client, how.sampling(), dialogue, *names, wanted.background, wanted.timeout, at.json)
            code = talk.converse()
    except TieError as error:
        code = asking.report(error, open_printer(as_json=at.json, choices=1))
    raise typer.Exit(code)


@app.command(epilog=table())
@grouped
def node(context: typer.Context, at: NodeOptions) -> None:
    """Show what the node says of itself: model, key, attestation, load."""
    at = at.over(context.obj)
    try:
        with asking.connect(at.target()) as client:
            said = _describe(client)
    except TieError as error:
        raise typer.Exit(asking.report(error, open_printer(as_json=at.json, choices=1))) from error
    if at.json:
        typer.echo(json.dumps(said))
        return
    width = max(map(len, said))
    for name, value in said.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {value}")


def main() -> None:
    """The console script. Ctrl-C while no answer is on its way ends it with the code of a cancellation."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(Exit.CANCELLED))
    app()


def _request(
    text: str, wanted: RequestOptions, how: SamplingOptions, having: ToolOptions, *, raw: bool
) -> inference_pb2.InferenceRequest:
    if raw and wanted.system is not None:
        raise InvalidRequest("--system", "has no place in raw text")
    if raw and having.is_given:
        raise InvalidRequest("--tools", "have no place in raw text: only a template tells the model of them")
    names = {"model": wanted.model, "adapter": wanted.adapter}
    if raw:
        return raw_request(text, how.sampling(), background=wanted.background, **names)
    first = [ChatMessage("system", wanted.system)] if wanted.system is not None else []
    messages = [*first, ChatMessage("user", text)]
    return chat_request(
        messages,
        how.sampling(),
        background=wanted.background,
        tools=having.offered(),
        tool_choice=having.tool_choice,
        **names,
    )


def _describe(client: Client) -> dict[str, object]:
    key, load = client.node_key(), client.load()
    return {
        "address": client.address,
        "model": key.model,
        "release": key.release,
        "bundle_identity": key.bundle_identity.hex(),
        "attestation_kind": key.kind,
        "key_id": key.key_id.hex(),
        "key_number": key.key_number,
        "suite": key.suite.name,
        "not_before_unix_s": key.not_before_unix_s,
        "not_after_unix_s": key.not_after_unix_s,
        "max_batch_size": load.max_batch_size,
        "current_batch_size": load.current_batch_size,
        "optimal_batch_size": load.optimal_batch_size,
    }


if __name__ == "__main__":
    main()
