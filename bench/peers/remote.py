"""Our side of a peer: starts its process, asks it, and says clearly when it is not there or has ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWER_S = 900.0
EXIT_S = 5.0
BENCH = Path(__file__).parents[1]
LIBRARIES = {"llama": "llama_cpp", "openvino": "openvino_genai"}


class PeerFailed(Exception):
    """It ended, or did not answer in time; what it said last is in the message."""


class Remote:
    """A session of `serving` in another process. A context manager: the process ends with it."""

    def __init__(self, python: Path, module: str, log: Path, parameters: dict[str, Any]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", f"peers.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=BENCH,
                env={**os.environ, "OPENVINO_LOG_LEVEL": "0"},
                text=True,
                bufsize=1,
            )
        try:
            self.version: str = self._ask(parameters)["version"]
        except BaseException:
            self.close()
            raise

    def prefill(self, tokens: int) -> float:
        return self._seconds(do="prefill", tokens=tokens)

    def begin(self, sequences: int, context: int, steps: int) -> None:
        self._ask({"do": "begin", "sequences": sequences, "context": context, "steps": steps})

    def decode(self, steps: int) -> float:
        return self._seconds(do="decode", steps=steps)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _seconds(self, **line: int | str) -> float:
        return float(self._ask(line)["seconds"])

    def _ask(self, line: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(json.dumps(line), file=stdin)
        except BrokenPipeError:
            raise self._failure("ended") from None
        if not select.select([stdout], [], [], ANSWER_S)[0]:
            raise self._failure(f"gave no answer within {ANSWER_S:.0f} s")
        answer: str = stdout.readline()
        if not answer:
            raise self._failure("ended")
        return dict(json.loads(answer))

    def _failure(self, what: str) -> PeerFailed:
        try:
            status = self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        said = [text for text in self._log.read_text(errors="replace").splitlines() if text.strip()]
        return PeerFailed(f"{what} (status {status}): {said[-1] if said else 'it said nothing'}")


def installed(python: Path) -> list[str]:
    """The modules of this package whose libraries that environment has."""
    if not python.exists():
        return []
    program = f"import importlib.util as u; print(*(m for m, l in {LIBRARIES}.items() if u.find_spec(l)))"
    found = subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True)
    return found.stdout.split()
