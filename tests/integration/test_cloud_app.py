"""tie-cloud-app as a process of its own, between a helper and a scripted runtime on real sockets."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from doubles.app_process import SOURCE, WAIT_S, AppProcess, Ended, app_process
from doubles.fake_runtime import FakeRuntime, Script, fails, run, says, until_aborted, usage
from doubles.tiny_adapter import add_adapters, tiny_pairs
from doubles.tiny_model import BPE_VOCAB_SIZE, TEST_TRUSTED, make_tiny_bundle, tiny_model, tokenizer_file

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2 as pb
from tie.api.job.v1 import job_pb2
from tie.catalog import open_assets
from tie.contracts.paths import RunPaths
from tie.prompting.byte_bpe import ByteBpe

MARKER = "MARKER7f3a"
TOKENIZER = ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)
OK, INVALID, INTERNAL = job_pb2.OUTCOME_OK, job_pb2.OUTCOME_INVALID_REQUEST, job_pb2.OUTCOME_INTERNAL_ERROR


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode_literal(text, is_start=True))


def chat(text: str = f"hello {MARKER}", **fields: Any) -> pb.InferenceRequest:
    asked = pb.InferenceRequest(request_id="r-1", **fields)
    asked.chat.messages.add(role=pb.ROLE_USER).parts.add(text=text)
    return asked


@dataclass
class Stage:
    """A run directory with a scripted runtime; `app` starts a process there."""

    paths: RunPaths
    runtime: FakeRuntime
    bundle: Path

    def configure(self, **cloud_app: Any) -> None:
        keys = self.paths.root / "trusted"
        keys.write_text("\n".join(key.hex() for key in TEST_TRUSTED))
        lines = [
            "[node]",
            f'run_dir = "{self.paths.root}"',
            f'bundle_dir = "{self.bundle}"',
            f'trusted_keys_file = "{keys}"',
        ]
        lines += ["[cloud_app]", *(f"{name} = {value}" for name, value in cloud_app.items())]
        self.paths.config.write_text("\n".join(lines))

    def app(self) -> Any:
        return app_process(self.paths.config, self.paths.root / "app.log")


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    destination = tmp_path_factory.mktemp("bundles") / "tiny"
    make_tiny_bundle(destination)
    add_adapters(destination, {"formal": tiny_pairs(tiny_model(), 1, matrices=["attn.q"])})
    return destination


@pytest.fixture
def stage(tmp_path: Path, tiny_bundle: Path) -> Iterator[Stage]:
    paths = RunPaths(tmp_path)
    with open_assets(tiny_bundle, trusted_keys=TEST_TRUSTED) as assets:
        identity = assets.identity
    with FakeRuntime(paths, identity, says(ids("fine"))) as runtime:
        found = Stage(paths, runtime, tiny_bundle)
        found.configure()
        yield found


def served(stage: Stage, request: pb.InferenceRequest | bytes, script: Script | None = None) -> Ended:
    if script is not None:
        stage.runtime.script = script
    with stage.app() as app:
        app.warm()
        app.ask(request)
        ended = app.until_end()
        assert app.exit_code() == 0
        assert MARKER not in app.log()
    return ended


def test_a_chat_is_answered_and_the_process_is_gone(stage: Stage) -> None:
    answer = "a few words, \u010f \u7d22 \U0001f600"
    with stage.app() as app:
        app.warm()
        app.ask(chat(), chunks=3)
        ended = app.until_end()
        assert app.exit_code() == 0
        (summary,) = app.events()
    stage_script = says(ids(answer))
    assert (ended.text, ended.outcome) == ("fine", OK)
    assert ended.finishes == [(0, pb.FINISH_REASON_LENGTH)]
    assert ended.responses[-1].usage.request_id == "r-1"
    assert served(stage, chat(), stage_script).text == answer
    call = stage.runtime.calls[0]
    assert ended.responses[-1].usage.prompt == len(call.tokens)
    assert call.params.max_tokens == 512 - len(call.tokens)
    assert summary["event"] == "request.done"
    assert {"intake_ms", "prompt_ms", "first_token_ms", "decode_ms", "total_ms", "warmup_ms"} <= summary.keys()
    assert (summary["prompt_tokens"], summary["completion_tokens"]) == (len(call.tokens), len(ids("fine")))


def test_a_request_in_a_file_is_answered_in_a_file(stage: Stage) -> None:
    request, answer = stage.paths.root / "in", stage.paths.root / "out"
    request.write_bytes(chat().SerializeToString())
    command = [
        sys.executable,
        "-m",
        "tie.cloud_app",
        "--config",
        str(stage.paths.config),
        "--input",
        str(request),
        "--output",
        str(answer),
    ]
    subprocess.run(command, check=True, timeout=WAIT_S, env={"PYTHONPATH": str(SOURCE)}, capture_output=True)
    data, text = answer.read_bytes(), ""
    while data:
        size = int.from_bytes(data[:4], "big")
        text += pb.InferenceResponse.FromString(data[4 : 4 + size]).delta.text
        data = data[4 + size :]
    assert text == "fine"


REFUSED: list[tuple[int, str, pb.InferenceRequest | bytes]] = [
    (pb.ERROR_KIND_INVALID_REQUEST, "", b"\x32\x02\xc3\x28"),
    (pb.ERROR_KIND_INVALID_REQUEST, "", b"\xff\xff"),
    (pb.ERROR_KIND_INVALID_REQUEST, "prompt", b""),
    (pb.ERROR_KIND_INVALID_REQUEST, "template_source", chat(template_source=MARKER)),
    (pb.ERROR_KIND_INVALID_REQUEST, "sampling.n", chat(sampling=pb.Sampling(n=0))),
    (pb.ERROR_KIND_INVALID_REQUEST, "sampling.temperature", chat(sampling=pb.Sampling(temperature=float("nan")))),
    (pb.ERROR_KIND_MODEL_NOT_FOUND, "adapter", chat(adapter=MARKER)),
    (pb.ERROR_KIND_INVALID_REQUEST, "constraint.regex", chat(constraint=pb.Constraint(regex=f"({MARKER}"))),
    (pb.ERROR_KIND_UNSUPPORTED, "constraint.fragment", chat(constraint=pb.Constraint(fragment={"rules": MARKER}))),
    (pb.ERROR_KIND_MODEL_NOT_FOUND, "model", chat(model=MARKER)),
    (pb.ERROR_KIND_PROMPT_TOO_LONG, "chat", chat(MARKER * 500)),
]


@pytest.mark.parametrize(("kind", "where", "request_"), REFUSED)
def test_a_refusal_is_an_error_in_a_bucket_and_never_reaches_the_runtime(
    stage: Stage, kind: int, where: str, request_: pb.InferenceRequest | bytes
) -> None:
    ended = served(stage, request_)
    assert (ended.error.kind, ended.error.where, ended.outcome) == (kind, where, INVALID)
    assert MARKER not in str(ended.error)
    assert stage.runtime.calls == []


def test_an_oversized_request_is_refused_with_the_limit(stage: Stage) -> None:
    stage.configure(max_request_bytes=1000)
    ended = served(stage, chat("x" * 5000))
    assert (ended.error.message, ended.outcome) == ("has more than 1000 bytes", INVALID)


def test_no_tokens_wanted_means_no_tokens_asked_for(stage: Stage) -> None:
    ended = served(stage, chat(sampling=pb.Sampling(max_tokens=0, n=2)))
    assert ended.finishes == [(0, pb.FINISH_REASON_LENGTH), (1, pb.FINISH_REASON_LENGTH)]
    assert (ended.text, ended.outcome) == ("", OK)
    assert stage.runtime.calls == []


def test_an_empty_text_is_the_models_own_beginning(stage: Stage) -> None:
    assert served(stage, pb.InferenceRequest(raw_text="")).outcome == OK
    assert stage.runtime.calls[0].tokens == (1,)


def test_control_tokens_in_a_request_are_text(stage: Stage) -> None:
    spelled = "".join(TOKENIZER.controls.spellings)
    served(stage, chat(spelled))
    start, end = TOKENIZER.controls.id_of("<|im_start|>"), TOKENIZER.controls.id_of("<|im_end|>")
    sent = stage.runtime.calls[0].tokens
    assert [token for token in sent if token in TOKENIZER.controls.token_ids] == [start, end, start]


def test_what_was_asked_for_reaches_the_runtime(stage: Stage) -> None:
    shape = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "logit_bias": {5: -2.0}, "seed": 99}
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    wanted = pb.Sampling(**shape, **penalties, max_tokens=8, min_tokens=3, ignore_eos=True, n=1)
    served(stage, chat(sampling=wanted, stop_strings=["stop"], stop_token_ids=[9]))
    params = stage.runtime.calls[0].params
    for name in (*shape, *penalties):
        assert getattr(params.sampling, name) == getattr(wanted, name)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos, params.n) == (8, 3, True, 1)
    assert (list(params.stop_strings), list(params.stop_token_ids)) == ([b"stop"], [9])
    assert not params.HasField("logprobs")


def test_an_adapter_reaches_the_runtime_and_leaves_the_prompt_alone(stage: Stage) -> None:
    assert served(stage, chat()).outcome == served(stage, chat(adapter="formal")).outcome == OK
    plain, formal = stage.runtime.calls
    assert (plain.params.adapter, formal.params.adapter) == ("", "formal")
    assert plain.tokens == formal.tokens


def test_a_seed_is_drawn_for_each_request_that_brings_none(stage: Stage) -> None:
    for _ in range(2):
        served(stage, chat())
    first, second = (call.params.sampling.seed for call in stage.runtime.calls)
    assert first != second


def test_a_stop_string_that_the_runtime_does_not_see_ends_the_answer_and_the_run(stage: Stage) -> None:
    def goes_on(call: Any) -> Iterator[Any]:
        for text in ("visible ST", "OP hidden", MARKER):
            yield run(ids(text))
        assert call.aborted.wait(WAIT_S), "nobody aborted"
        yield run((), finish=afm_pb2.FINISH_REASON_CANCELLED)
        yield usage(1, 2)

    ended = served(stage, chat(stop_strings=["STOP"]), goes_on)
    assert (ended.text, ended.finishes, ended.outcome) == ("visible ", [(0, pb.FINISH_REASON_STOP)], OK)


def test_a_runtime_that_fails_this_request_says_why(stage: Stage) -> None:
    ended = served(stage, chat(), fails(afm_pb2.FAILURE_KIND_NOT_FINITE))
    assert (ended.error.kind, ended.outcome) == (pb.ERROR_KIND_GENERATION_FAILED, INTERNAL)
    assert ended.finishes == [(0, pb.FINISH_REASON_ERROR)]
    assert served(stage, chat(), fails(afm_pb2.FAILURE_KIND_BUSY)).error.kind == pb.ERROR_KIND_BUSY


def test_a_teardown_aborts_the_run_and_what_was_held_is_let_out(stage: Stage) -> None:
    stage.runtime.script = until_aborted([*ids("said ST"), *_bytes(b"\xf0\x9f")])
    with stage.app() as app:
        app.warm()
        app.ask(chat(stop_strings=["STOP"]))
        ended = Ended()
        app.until_text(ended)
        app.send(teardown=job_pb2.Teardown())
        app.until_end(ended)
        assert app.exit_code() == 0
    assert (ended.text, ended.outcome) == ("said ST\N{REPLACEMENT CHARACTER}", OK)
    assert ended.finishes == [(0, pb.FINISH_REASON_CANCELLED)]
    assert stage.runtime.calls[0].aborted.is_set()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_teardown_before_the_request_ends_the_process(stage: Stage, steps: int) -> None:
    with stage.app() as app:
        if steps > 0:
            app.warm()
        if steps > 1:
            app.send(parameters=job_pb2.Parameters())
        app.send(teardown=job_pb2.Teardown())
        assert app.until_end().outcome is None
        assert app.exit_code() == 0


def test_a_helper_that_dies_takes_its_run_with_it(stage: Stage) -> None:
    stage.runtime.script = until_aborted(ids("said"))
    with stage.app() as app:
        app.warm()
        app.ask(chat())
        app.until_text(Ended())
        app.connection.close()
        assert app.exit_code() == 1
    assert stage.runtime.calls[0].aborted.is_set()


def test_the_runtimes_death_is_told_at_once(stage: Stage) -> None:
    stage.runtime.script = until_aborted(ids("said"))
    with stage.app() as app:
        app.warm()
        app.ask(chat())
        ended = Ended()
        app.until_text(ended)
        stage.runtime.drop_links()
        app.until_end(ended)
        assert app.exit_code() == 0
    assert (ended.error.kind, ended.outcome) == (pb.ERROR_KIND_RUNTIME_LOST, INTERNAL)
    assert (ended.text, ended.finishes) == ("said", [(0, pb.FINISH_REASON_ERROR)])


def test_a_warm_process_whose_runtime_dies_is_no_longer_of_use(stage: Stage) -> None:
    with stage.app() as app:
        app.warm()
        stage.runtime.drop_links()
        assert app.until_end().outcome is None
        assert app.exit_code() == 1


@pytest.mark.parametrize(
    ("settings", "deadline_ms"), [({"token_gap_timeout_s": 0.3}, 0), ({}, 1500), ({"request_timeout_s": 1.5}, 0)]
)
def test_a_runtime_that_falls_silent_meets_a_deadline(stage: Stage, settings: dict[str, Any], deadline_ms: int) -> None:
    stage.configure(**settings)
    stage.runtime.script = until_aborted(ids("said"))
    with stage.app() as app:
        app.warm()
        app.ask(chat(), deadline_ms=deadline_ms)
        ended = app.until_end()
        assert app.exit_code() == 0
    assert (ended.error.kind, ended.outcome) == (pb.ERROR_KIND_DEADLINE, INTERNAL)
    assert ended.text == "said"


def test_an_upload_that_does_not_end_meets_the_deadline(stage: Stage) -> None:
    with stage.app() as app:
        app.warm()
        app.send(parameters=job_pb2.Parameters(deadline_ms=200))
        app.send(request_chunk=job_pb2.RequestChunk(data=b"x"))
        ended = app.until_end()
        assert app.exit_code() == 0
    assert (ended.error.kind, ended.outcome) == (pb.ERROR_KIND_DEADLINE, INTERNAL)


def test_a_runtime_that_dies_while_the_request_comes_is_told_of(stage: Stage) -> None:
    with stage.app() as app:
        app.warm()
        app.send(parameters=job_pb2.Parameters())
        stage.runtime.drop_links()
        app.send(request_chunk=job_pb2.RequestChunk(data=chat().SerializeToString(), is_final=True))
        ended = app.until_end()
        assert app.exit_code() == 0
    assert (ended.error.kind, ended.outcome) == (pb.ERROR_KIND_RUNTIME_LOST, INTERNAL)


def _second_warmup(app: AppProcess) -> None:
    app.warm()
    app.send(warmup=job_pb2.Warmup())


def _second_parameters(app: AppProcess) -> None:
    app.warm()
    app.send(parameters=job_pb2.Parameters())
    app.send(parameters=job_pb2.Parameters())


def _parameters_first(app: AppProcess) -> None:
    app.send(parameters=job_pb2.Parameters())


def _chunk_before_parameters(app: AppProcess) -> None:
    app.warm()
    app.send(request_chunk=job_pb2.RequestChunk(data=MARKER.encode(), is_final=True))


def _frame_of_ours(app: AppProcess) -> None:
    app.send(warmup_done=job_pb2.WarmupDone())


def _empty_frame(app: AppProcess) -> None:
    app.connection.sendall(bytes(4))


def _endless_frame(app: AppProcess) -> None:
    app.connection.sendall(b"\xff\xff\xff\xff")


def _no_protobuf(app: AppProcess) -> None:
    app.send_raw(b"\xff" + MARKER.encode())


def _key_of_another_length(app: AppProcess) -> None:
    app.warm()
    app.send(parameters=job_pb2.Parameters(kv_request_key=MARKER.encode()))


@pytest.mark.parametrize(
    "misbehave",
    [
        _second_warmup, _second_parameters, _parameters_first, _chunk_before_parameters, _frame_of_ours, _empty_frame,
        _endless_frame, _no_protobuf, _key_of_another_length,
    ],
)  # fmt: skip
def test_a_helper_that_breaks_the_protocol_fails_the_job(stage: Stage, misbehave: Callable[[AppProcess], None]) -> None:
    with stage.app() as app:
        misbehave(app)
        assert app.until_end().outcome is None
        assert app.exit_code() == 1
        assert MARKER not in app.log()
        assert app.events()[-1]["event"] == "job.failed"


@pytest.mark.parametrize(
    "frame",
    [
        {"request_chunk": job_pb2.RequestChunk(data=b"more")},
        {"request_chunk": job_pb2.RequestChunk(is_final=True)},
        {"parameters": job_pb2.Parameters()},
    ],
)
def test_a_frame_after_the_final_chunk_fails_the_job(stage: Stage, frame: dict[str, Any]) -> None:
    stage.runtime.script = until_aborted(ids("said"))
    with stage.app() as app:
        app.warm()
        app.ask(chat())
        ended = Ended()
        app.until_text(ended)
        app.send(**frame)
        app.until_end(ended)
        assert app.exit_code() == 1
    assert ended.outcome == INTERNAL
    assert stage.runtime.calls[0].aborted.is_set()


def test_without_its_runtime_a_process_does_not_warm_up(stage: Stage) -> None:
    stage.paths.runtime_socket.unlink()
    with stage.app() as app:
        app.send(warmup=job_pb2.Warmup())
        assert app.until_end().outcome is None
        assert app.exit_code() == 1


def test_a_runtime_with_another_bundle_is_not_used(tmp_path: Path, tiny_bundle: Path) -> None:
    with FakeRuntime(RunPaths(tmp_path), bytes(32), says([])) as runtime:
        stage = Stage(RunPaths(tmp_path), runtime, tiny_bundle)
        stage.configure()
        with stage.app() as app:
            app.send(warmup=job_pb2.Warmup())
            assert app.until_end().outcome is None
            assert app.exit_code() == 1
            assert "another bundle" in app.events()[-1]["reason"]


def test_an_unknown_key_of_the_configuration_stops_the_start(stage: Stage) -> None:
    stage.configure(colour='"red"')
    with stage.app() as app:
        assert app.until_end().outcome is None
        assert app.exit_code() == 1


def test_a_process_has_given_up_what_it_does_not_need(stage: Stage) -> None:
    stage.runtime.script = until_aborted(ids("said"))
    with stage.app() as app:
        app.warm()
        app.ask(chat())
        app.until_text(Ended())
        limits = resource.prlimit(app.process.pid, resource.RLIMIT_CORE)
        cpu = resource.prlimit(app.process.pid, resource.RLIMIT_CPU)
        proc = Path(f"/proc/{app.process.pid}")
        status = (proc / "status").read_text()
        seen = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert limits == (0, 0)
    assert cpu == (60, 61)
    assert "NoNewPrivs:\t1" in status
    assert MARKER.encode() not in seen
    assert b"LISTEN_PID" in seen  # the environment was really read


def test_a_request_process_loads_no_more_than_it_needs() -> None:
    code = (
        "import tie.cloud_app.__main__, tie.cloud_app.from_connection, tie.cloud_app.rehearsal, tie.cloud_app.running\n"
        "import tie.prompting.byte_bpe, sys\n"
        "print(*(name for name, module in sys.modules.items() if module is not None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=WAIT_S, env={"PYTHONPATH": str(SOURCE)}, capture_output=True
    )
    loaded = set(done.stdout.decode().split())
    assert "tie.cloud_app.running" in loaded
    assert loaded.isdisjoint({"numpy", "rich", "tie.bones", "tie.envelope", "tritonclient", "sentencepiece", "typer"})


def _bytes(data: bytes) -> list[int]:
    by_byte = {TOKENIZER.spelling(token): token for token in reversed(range(TOKENIZER.vocab_size))}
    return [by_byte[bytes((byte,))] for byte in data]
