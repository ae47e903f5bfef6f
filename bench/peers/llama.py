"""llama.cpp, by its low-level interface: whole prompts in one call, one token of each sequence a step, 16-bit KV.

Flash attention is on for prompts, where it was the faster by a third; for decoding each workload tries both.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy as np

from peers.serving import prompt, serve, stopwatch

MICRO_BATCH = 512
PREFILL_ROOM = 2048
TRIALS = 4
ERROR_LEVEL = 4


class Llama:
    """Contexts are made for what they are asked to hold: a larger one would be slower."""

    def __init__(self, path: str, threads: int) -> None:
        llama_cpp.llama_log_set(_ERRORS_ONLY, None)
        parameters = llama_cpp.llama_model_default_params()
        self._threads = threads
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._kind = ""
        self._batch = llama_cpp.llama_batch_init(PREFILL_ROOM, 0, 1)
        self._sequences = self._position = 0

    def prefill(self, tokens: int) -> float:
        if self._kind != "prefill":
            self._open("prefill", PREFILL_ROOM, 1, flash=True)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._fill(prompt(tokens))
        elapsed = stopwatch()
        self._step(1)
        return elapsed()

    def begin(self, sequences: int, context: int, steps: int) -> None:
        """With flash attention or without, whichever decodes faster here."""
        trials = {}
        for flash in (True, False):
            self._start(sequences, context, TRIALS, flash)
            trials[flash] = min(self.decode(1) for _ in range(TRIALS))
        self._start(sequences, context, steps, trials[True] < trials[False])
        self.decode(1)

    def _start(self, sequences: int, context: int, steps: int, flash: bool) -> None:
        """Each sequence has a cache of its own; the first is computed, the others are copies of it."""
        self._open("decode", sequences * (context + steps), sequences, flash)
        self._fill(prompt(context))
        self._step(1)
        memory = llama_cpp.llama_get_memory(self._context)
        for sequence in range(1, sequences):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        self._sequences, self._position = sequences, context

    def decode(self, steps: int) -> float:
        for sequence in range(self._sequences):
            self._put(sequence, prompt(1, sequence)[0], self._position, sequence, wanted=True)
        self._batch.n_tokens = self._sequences
        positions = np.ctypeslib.as_array(self._batch.pos, (self._sequences,))
        self._position += steps
        elapsed = stopwatch()
        for _ in range(steps):
            self._step(self._sequences)
            positions += 1
        return elapsed()

    def _open(self, kind: str, tokens: int, sequences: int, flash: bool) -> None:
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens, sequences
        parameters.n_batch, parameters.n_ubatch = PREFILL_ROOM, MICRO_BATCH
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.flash_attn_type = int(flash)
        parameters.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context of {tokens} tokens")
        self._kind = kind

    def _fill(self, ids: list[int]) -> None:
        self._batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            self._put(index, token, index, 0, wanted=index == len(ids) - 1)

    def _put(self, index: int, token: int, position: int, sequence: int, *, wanted: bool) -> None:
        batch = self._batch
        batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence

    def _step(self, outputs: int) -> None:
        """One pass and the likeliest token of each output."""
        failure = llama_cpp.llama_decode(self._context, self._batch)
        if failure:
            raise RuntimeError(f"llama_decode gave {failure}")
        logits = llama_cpp.llama_get_logits(self._context)
        np.ctypeslib.as_array(logits, (outputs, self._vocab)).argmax(axis=1)


def _say(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    if level == ERROR_LEVEL:
        sys.stderr.write(text.decode(errors="replace"))


_ERRORS_ONLY = llama_cpp.llama_log_callback(_say)
"""Kept: the library holds a bare pointer to it."""


if __name__ == "__main__":
    llama_cpp.llama_backend_init()
    serve(lambda given: Llama(**given), llama_cpp.__version__)
