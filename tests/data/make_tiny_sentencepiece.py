"""Makes tiny.model, the SentencePiece tokenizer of the tests, from corpus.txt."""

import io
from pathlib import Path

import sentencepiece

HERE = Path(__file__).parent
VOCAB_SIZE = 512


def main() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((HERE / "corpus.txt").read_text().splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        byte_fallback=True,
        character_coverage=1.0,
        control_symbols=["<|im_start|>", "<|im_end|>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        num_threads=1,
        minloglevel=1,
    )
    (HERE / "tiny.model").write_bytes(model.getvalue())


if __name__ == "__main__":
    main()
