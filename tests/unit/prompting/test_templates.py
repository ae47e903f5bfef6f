"""Templates: what they may not do, what they may cost, and whose words become control tokens."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.prompting.budget import MAX_STEPS
from tie.prompting.chat import Message
from tie.prompting.controls import Control, Controls
from tie.prompting.errors import TemplateFailed, TemplateOverBudget, TemplateRejected
from tie.prompting.templates import Piece, Templates

START, END, SEP, BOS = 1, 2, 3, 4
CONTROLS = Controls(
    [Control("<|im_start|>", START), Control("<|im_end|>", END), Control("<sep>", SEP), Control("<s>", BOS)]
)
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat(source: str, *messages: tuple[str, str], controls: Controls = CONTROLS, bos: str = "<s>") -> list[Piece]:
    templates = Templates({"chat": source}, controls, chat_template="chat", bos_token=bos, eos_token="<|im_end|>")
    return templates.render_chat([Message(role, content) for role, content in messages or [("user", "hi")]])


def values(source: str, **given_values: str) -> list[Piece]:
    return Templates({"t": source}, CONTROLS, chat_template=None).render_values("t", given_values)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in range(100000) %}{% for y in range(100000) %}{% endfor %}{% endfor %}",
        "{% for x in range(100000) if false %}{% endfor %}" * 3,
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 2 ** 1000000000 }}",
        "{% set ns = namespace(x=7) %}{% for i in range(200) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}"
        "{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{% for x in range(100000) %}{{ range(100000)|list|length }}{% endfor %}",
        "{% for x in range(100000) %}{{ range(100000)|select('odd')|list|length }}{% endfor %}",
        "{% for x in range(90000) %}{{ messages[0].content }}{% endfor %}",
    ],
)
def test_a_spinning_template_ends_within_its_budget(source: str) -> None:
    with pytest.raises(TemplateOverBudget):
        chat(source, ("user", "x" * 10_000))


@pytest.mark.parametrize(
    "source",
    ["{% for", "{{ x", "{% nonsense %}", "{{ x|pprint }}", "{{ x|center(99) }}", "((((" * 0 + "{{ " + "(" * 4000],
)
def test_a_template_that_does_not_compile_is_rejected(source: str) -> None:
    with pytest.raises(TemplateRejected) as caught:
        chat(source)
    assert source not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__ }}{{ self._TemplateReference__context }}",
        "{{ messages[0].role.__add__ }}{{ messages[0].role._written }}",
        "{{ ''.format }}{{ '{0}'.format(messages) }}",
        "{{ cycler }}{{ lipsum }}{{ joiner }}",
    ],
)
def test_nothing_of_python_is_within_reach(source: str) -> None:
    try:
        rendered = chat(source)
    except TemplateFailed:
        return
    assert all(isinstance(piece, str) and "<" not in piece and "object" not in piece for piece in rendered)


@pytest.mark.parametrize("source", ["{% include 'x' %}", "{% import 'x' as x %}", "{% extends 'x' %}"])
def test_a_template_loads_no_other(source: str) -> None:
    with pytest.raises(TemplateFailed):
        chat(source)


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{{ messages[0].update({}) }}", "{{ messages.clear() }}"]
)
def test_a_template_changes_nothing(source: str) -> None:
    with pytest.raises(TemplateFailed):
        chat(source)


def test_what_a_template_says_in_an_exception_goes_nowhere() -> None:
    with pytest.raises(TemplateFailed) as caught:
        chat("{{ raise_exception('no ' + messages[0].content) }}", ("user", "MARKER"))
    assert "MARKER" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content + 1 }}", "{{ 1 / 0 }}", "{{ messages[7].content }}", "{{ messages[0].content|int + [] }}"],
)
def test_a_template_that_stumbles_fails_without_quoting(source: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        chat(source, ("user", "MARKER"))
    assert "MARKER" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_budget_is_fresh_for_each_rendering() -> None:
    source = f"{{% for x in range({MAX_STEPS * 2 // 5}) %}}{{% endfor %}}done"
    templates = Templates({"chat": source}, CONTROLS, chat_template="chat")
    assert [templates.render_chat([Message("user", "")]) for _ in range(3)] == [["done"]] * 3


def test_a_value_that_is_missing_is_refused_and_may_be_asked_for() -> None:
    with pytest.raises(TemplateFailed):
        values("{{ name }}")
    assert values("{% if name is defined %}{{ name }}{% else %}nobody{% endif %}") == ["nobody"]


def test_a_template_says_which_values_it_takes() -> None:
    sources = {"t": "{{ a }}{% set c = b %}{{ c }}{{ bos_token }}{{ range(3) }}", "chat": "{{ messages }}"}
    templates = Templates(sources, CONTROLS, chat_template="chat")
    assert templates.parameters("t") == {"a", "b"}
    assert templates.parameters("chat") is None
    assert templates.parameters("other") is None


def test_control_tokens_come_from_the_template_alone() -> None:
    text = "".join(CONTROLS.spellings)
    assert chat(CHATML, ("system", text), ("user", text)) == [
        START, f"system\n{text}", END, "\n", START, f"user\n{text}", END, "\n", START, "assistant\n",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS.spellings)
def test_pieces_of_a_control_token_do_not_join(name: str) -> None:
    for cut in range(1, len(name)):
        head, tail = name[:cut], name[cut:]
        assert _literal(values("{{ a }}{{ b }}", a=head, b=tail)) == name
        assert _literal(values("{{ a ~ b }}", a=head, b=tail)) == name
        assert _literal(values("{{ a + b }}", a=head, b=tail)) == name
        assert _literal(values(head + "{{ b }}", b=tail)) == name
        assert _literal(values("{{ a }}" + tail, a=head)) == name
        assert _literal(values("{{ '" + head + "' + b }}", b=tail)) == name
        assert _literal(values("{{ a ~ '" + tail + "' }}", a=head)) == name
        assert _literal(values("{{ [a, b]|join }}", a=head, b=tail)) == name
        assert (
            _literal(chat("{{ messages[0].content }}{{ messages[1].content }}", ("user", head), ("user", tail))) == name
        )


def test_a_template_may_put_a_control_token_together_itself() -> None:
    controls = Controls([Control("<|user|>", 7), Control("<|end|>", 8)])
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content + '<|' ~ 'end|>' }}{% endfor %}"
    assert chat(source, ("user", "a<|user|>"), controls=controls) == [7, "a<|user|>", 8]


def test_a_template_may_look_for_a_control_token_in_user_text() -> None:
    source = "{% if '<sep>' in messages[0].content %}{{ messages[0].content.split('<sep>')[-1]|trim }}{% endif %}<sep>"
    assert chat(source, ("user", "a<sep> b ")) == ["b", SEP]


def test_a_control_token_survives_variables_lists_and_conditions() -> None:
    source = (
        "{% set open = '<|im_start|>' %}{% set ends = {'x': '<|im_end|>'} %}{{ open if messages else '<sep>' }}"
        "{{ messages[0].content | trim }}{{ ends['x'] }}{% for t in ['<sep>', '<s>'] %}{{ t }}{% endfor %}"
        "{% macro wrap(x) %}<sep>{{ x }}<sep>{% endmacro %}{{ wrap('in') }}{{ bos_token }}{{ eos_token }}"
    )
    assert chat(source, ("user", " a ")) == [START, "a", END, SEP, BOS, SEP, "in", SEP, BOS, END]


def test_white_space_that_a_control_token_swallows_is_the_templates_only() -> None:
    controls = Controls([Control("<end>", 7, strips_right=True), Control("<left>", 8, strips_left=True)])
    assert chat("a<end>\n b", controls=controls) == ["a", 7, "b"]
    assert chat("a \n<left> b", controls=controls) == ["a", 8, " b"]
    assert chat("<end>{{ messages[0].content }}<left>", ("user", " x "), controls=controls) == [7, " x ", 8]


def test_the_longest_control_token_wins() -> None:
    controls = Controls([Control("<a>", 7), Control("<a><b>", 8), Control("<b>", 9)])
    assert chat("<a><b><b><a>", controls=controls) == [8, 9, 7]


def test_text_out_of_the_window_of_twins_takes_another_window() -> None:
    everything = "".join(map(chr, range(0x40000, 0x40000 + 2000)))
    templates = Templates({"chat": CHATML}, CONTROLS, chat_template="chat")
    twins = templates._compiled["chat"]._twins
    hostile = twins.mark("<|im_end|>")
    assert twins.occur_in(hostile)
    assert templates.render_chat([Message("user", hostile + everything)])[5] == f"user\n{hostile}{everything}"
    assert not templates._compiled["chat"]._twins.occur_in(hostile)


def test_json_and_roles_are_written_as_chat_templates_elsewhere_write_them() -> None:
    assert chat("{{ {'a': messages[0].content} | tojson }}", ("user", "é<'&>")) == ['{"a": "é<\'&>"}']
    assert chat("{{ messages[0].role | upper }}{{ messages[0].role ~ 1 }}") == ["USERuser1"]
    assert chat("{% if messages[0]['role'] in ['user', 'tool'] %}yes{% endif %}") == ["yes"]
    assert chat(
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}", ("user", ""), ("user", "")
    ) == ["x"]
    assert chat("a\n{% if true %}\n  b\n{% endif %}\nc") == ["a\n  b\nc"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["system", "user", "assistant"]),
            st.text(alphabet=st.sampled_from("ab \n<|im_start>end>é"), max_size=12)
            | st.sampled_from(CONTROLS.spellings),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_rendering_reads_like_plain_jinja(messages: list[tuple[str, str]]) -> None:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHATML)
    expected = plain.render(
        messages=[{"role": role, "content": text} for role, text in messages], add_generation_prompt=True
    )
    names = {CONTROLS.id_of(spelling): spelling for spelling in CONTROLS.spellings}
    pieces = chat(CHATML, *messages)
    assert "".join(piece if isinstance(piece, str) else names[piece] for piece in pieces) == expected
    turns = len(messages) + (messages[0][0] != "system")
    assert [piece for piece in pieces if isinstance(piece, int)] == [START, END] * turns + [START]


def _literal(pieces: list[Piece]) -> str:
    assert all(isinstance(piece, str) for piece in pieces), "a control token was joined"
    return "".join(str(piece) for piece in pieces)
