"""Has grammars written in a process of its own, which is ended when a schema takes too much of anything."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from cachetools import LRUCache

from model.errors import InputError
from model.text.grammar.calls import CallOptions
from model.text.tokenizer import TextTokenizer

TIMEOUT_S = 10.0
"""For one schema, however busy the machine is; the process itself has less time of its own."""
START_TIMEOUT_S = 60.0
MEMORY_BYTES = 3 * 1024**3
"""Address space of the process, most of which is never touched."""
CACHE_BYTES = 32 * 1024**2
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of a request: a grammar, or an error's message, parameter and code."""

    n_bytes: int
    grammar: str = ""
    error: tuple[str, str | None, str | None] | None = None


class GrammarCompiler:
    """Writes grammars, remembers those it has written, and those that could not be. Used by one thread.

    The process starts with the first request, or with :meth:`start`.

    Args:
        tokenizer: of the model.
        vocab_size: length of a row of logits.
        timeout_s: seconds that one schema may take.
        memory_bytes: address space that the process may have, where the system limits it.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        vocab_size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._controls = sorted(tokenizer.controls)
        self._setting = {
            "definition": tokenizer.definition,
            "vocab_size": vocab_size,
            "eos_ids": list(tokenizer.eos_ids),
            "memory_bytes": memory_bytes,
        }
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._results: LRUCache[bytes, _Result] = LRUCache(CACHE_BYTES, lambda result: result.n_bytes)

    def json(
        self,
        schema: Mapping[str, Any],
        where: str = "response_format.schema",
        *,
        is_strict: bool = False,
        max_string_chars: int | None = None,
    ) -> str:
        """The grammar of JSON, see :func:`model.text.grammar.rules.json_schema`.

        Raises:
            InputError: as there; also for what takes too much time or memory (code ``invalid_schema``).
        """
        options = {"is_strict": is_strict, "max_string_chars": max_string_chars}
        return self._written({"schema": schema, "where": where, "options": options})

    def calls(self, tools: Sequence[Mapping[str, Any]], **options: Unpack[CallOptions]) -> str:
        """The grammar of calls, see :func:`model.text.grammar.calls.call_grammar`.

        Raises:
            InputError: as :meth:`json` does.
        """
        forms = {name: list(asdict(form).values()) for name, form in (options.get("forms") or {}).items()}
        request = {
            "tools": list(tools),
            "controls": self._controls,
            "where": "tools",
            "options": {**options, "forms": forms},
        }
        return self._written(request)

    def start(self) -> None:
        """Have the process ready, without waiting for it."""
        if self._process is None:
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "model.text.grammar.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a panic may print a stranger's schema
                env={**os.environ, "PYTHONPATH": path},
            )

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # what was not written any more
                    pipe.close()

    def _written(self, request: Mapping[str, Any]) -> str:
        where = str(request["where"])
        try:
            line = json.dumps(request).encode() + b"\n"
        except RecursionError as error:
            raise InputError(f"{where} is nested too deeply", param=where, code="invalid_schema") from error
        result = self._results.get(line)
        if result is None:
            result = self._asked(line, where)
            if len(line) + result.n_bytes <= CACHE_BYTES:
                self._results[line] = result
        if result.error is not None:
            message, param, code = result.error
            raise InputError(message, param=param, code=code)
        return result.grammar

    def _asked(self, line: bytes, where: str) -> _Result:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # somebody has ended it while it had nothing to do
        self.start()
        if not self._is_ready:
            self._exchange(json.dumps(self._setting).encode() + b"\n", START_TIMEOUT_S)
            self._is_ready = True
        try:
            answer = json.loads(self._exchange(line, self._timeout_s))
        except (TimeoutError, EOFError, OSError) as error:
            is_slow = isinstance(error, TimeoutError) or self._ended_by() == -signal.SIGXCPU
            wanting = "time" if is_slow else "memory"
            self.close()
            told = f"{where} cannot be enforced: its compilation takes too much {wanting}"
            return _Result(len(line) + len(told), error=(told, where, "invalid_schema"))
        grammar, told = answer.get("grammar", ""), answer.get("error")
        return _Result(len(line) + len(grammar), grammar, None if told is None else tuple(told))

    def _ended_by(self) -> int | None:
        """The exit status of the process, which has closed its end."""
        return None if self._process is None else self._process.wait(START_TIMEOUT_S)

    def _exchange(self, line: bytes, timeout_s: float) -> bytes:
        """Send ``line`` and wait for the answer's.

        Raises:
            TimeoutError: none has come.
            EOFError, OSError: the process has ended.
        """
        process = self._process
        if process is None:
            raise EOFError  # closed from another thread
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TimeoutError
        answer = process.stdout.readline()
        if not answer:
            raise EOFError
        return answer
