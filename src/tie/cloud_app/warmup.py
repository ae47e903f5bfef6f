"""Everything that can be done before a request is known: libraries, tokenizer, templates, the ways to the runtime."""

from __future__ import annotations

from dataclasses import dataclass

from tie.catalog import Assets, BundleDescription, BundleRejected, load_trusted_keys, open_assets
from tie.catalog.description import FILE
from tie.clients.inference import InferenceClient
from tie.clients.runtime_link import RuntimeLink
from tie.cloud_app.intake import Offer
from tie.constraints.call_form import CallForm, Marker
from tie.contracts.errors import NotReady
from tie.prompting.templates import Templates
from tie.prompting.tokenizers import Tokenizer, load_tokenizer
from tie.servicekit.config import NodeConfig

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a request needs and every request shares."""

    described: BundleDescription
    identity: bytes
    tokenizer: Tokenizer
    templates: Templates
    context_length: int
    offer: Offer
    link: RuntimeLink
    client: InferenceClient


def warm_up(node: NodeConfig) -> Warmed:
    """Raises CatalogError, TokenizerRejected, TemplateRejected, NotReady, DeadlinePassed, PeerError."""
    trusted = load_trusted_keys(node.trusted_keys_file) if node.trusted_keys_file else ()
    with open_assets(node.bundle_dir, trusted_keys=trusted, allow_unsigned=node.allow_unsigned_bundle) as assets:
        described = assets.description
        tokenizer = load_tokenizer(described.tokenizer, assets.read_tokenizer(), described.model.vocab_size)
        templates = load_templates(assets, tokenizer)
        link, client = _connect(node, assets.identity)
    return Warmed(
        described=described,
        identity=assets.identity,
        tokenizer=tokenizer,
        templates=templates,
        context_length=min(link.context_length, described.model.context_length),
        offer=Offer(
            described.name,
            described.model.vocab_size,
            templates.has_chat,
            templates.parameters,
            frozenset(assets.adapter_names),
            call_form(described, tokenizer),
        ),
        link=link,
        client=client,
    )


def load_templates(assets: Assets, tokenizer: Tokenizer) -> Templates:
    """All templates of the bundle, compiled."""
    described = assets.description
    bos, eos = described.tokenizer.bos_token_id, described.tokenizer.eos_token_ids[0]
    return Templates(
        {template_id: assets.template(template_id) for template_id in assets.template_ids},
        tokenizer.controls,
        chat_template=described.chat_template,
        bos_token=tokenizer.name(bos) if bos is not None else "",
        eos_token=tokenizer.name(eos),
    )


def call_form(described: BundleDescription, tokenizer: Tokenizer) -> CallForm | None:
    """How the model writes tool calls. Raises BundleRejected where a marker would end the answer."""
    tools = described.tools
    if tools is None:
        return None
    begin, end = (_marker(spelling, tokenizer) for spelling in (tools.begin, tools.end))
    for key, marker in (("begin", begin), ("end", end)):
        if marker in described.tokenizer.eos_token_ids:
            raise BundleRejected(FILE, f"key tools.{key} is a token that ends the answer")
    return CallForm(tools, begin, end)


def _marker(spelling: str, tokenizer: Tokenizer) -> Marker:
    """The text, or a control token that no reader would see."""
    if spelling not in tokenizer.controls.spellings:
        return spelling
    token_id = tokenizer.controls.id_of(spelling)
    return spelling if tokenizer.spelling(token_id) else token_id


def _connect(node: NodeConfig, identity: bytes) -> tuple[RuntimeLink, InferenceClient]:
    link = RuntimeLink.connect(node.paths.runtime_socket, CONNECT_TIMEOUT_S)
    if link.bundle_identity != identity:
        raise NotReady("the runtime serves another bundle than this process has loaded")
    client = InferenceClient(node.paths.triton_socket)
    client.connect(CONNECT_TIMEOUT_S)
    if not client.is_ready(CONNECT_TIMEOUT_S):
        raise NotReady("triton has not loaded the model")
    return link, client
