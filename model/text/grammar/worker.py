"""The process in which the schemas of strangers are compiled: it may be ended at any moment.

A schema of a few kilobytes can take minutes and gigabytes to compile, and no library call can be
interrupted. So that happens here, between pipes: a line of JSON in, a line of JSON out. What comes out is
proven: it was compiled and its masks were computed for the first few tokens, at a cost that the engine may
have again. ``model/text/grammar/compiler.py`` is the other end, and keeps the time.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import llguidance
import numpy as np

from model.errors import InputError
from model.text.grammar.calls import TextForm, call_grammar
from model.text.grammar.rules import PARSER_LIMITS, json_schema

N_STEPS = 64
"""Tokens for which masks are computed: well into the first member of an object."""
MAX_CPU_S = 0.5
"""What compiling and those masks may cost: for so long the engine stops for it."""
MAX_REQUEST_CPU_S = 2
"""For one request, before the system ends the process: by its own time, not by a busy machine's."""
LIKELY = b'{"a}[]:,1\n<t- '
"""Characters with which the walk tries to get ahead."""


def main() -> None:
    """Answer requests from standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's, from the same terminal
    setting = json.loads(sys.stdin.buffer.readline())
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = setting["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    prover = Prover(setting["definition"], setting["vocab_size"], setting["eos_ids"])
    _tell({"ready": True})
    for line in sys.stdin.buffer:
        _limit_time()
        _tell(_answer(json.loads(line), prover))


def _limit_time() -> None:
    """Have this process ended by the system if the next request takes too long."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + MAX_REQUEST_CPU_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or soft <= hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


class Prover:
    """Tries grammars on a model's tokens.

    Args:
        definition: ``tokenizer.json`` as text.
        vocab_size: length of a row of logits.
    """

    def __init__(self, definition: str, vocab_size: int, eos_ids: list[int]) -> None:
        self._tokens = llguidance.LLTokenizer(definition, n_vocab=vocab_size, eos_token=eos_ids)
        likely = (self._tokens.tokenize_bytes(bytes([byte])) for byte in LIKELY)
        self._likely = [ids[0] for ids in likely if len(ids) == 1]
        self._eos_ids = eos_ids

    def reason_against(self, grammar: str, max_cpu_s: float = MAX_CPU_S) -> str | None:
        """Why ``grammar`` cannot be used, in a few words; None if it can."""
        start = time.process_time()
        matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=PARSER_LIMITS)
        cpu_s = time.process_time() - start
        for _ in range(N_STEPS):
            if matcher.is_error() or matcher.is_stopped() or cpu_s > max_cpu_s:
                break
            start = time.process_time()
            mask = matcher.compute_bitmask()
            cpu_s += time.process_time() - start
            token = None if matcher.is_error() else self._next(mask)
            if token is None:
                break
            matcher.consume_token(token)
        if matcher.is_error():
            return "it is too complex"
        return "it takes too long to compile" if cpu_s > max_cpu_s else None

    def _next(self, mask: bytes) -> int | None:
        """A token that ``mask``, a bit for each, allows; one that leads on, if there is any."""
        likely = next((token for token in self._likely if mask[token >> 3] >> (token & 7) & 1), None)
        if likely is not None:
            return likely
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")
        bits[self._eos_ids] = 0
        first = int(bits.argmax())
        return first if bits[first] else None


def _answer(request: Mapping[str, Any], prover: Prover) -> dict[str, Any]:
    where = str(request["where"])
    try:
        grammar = write(request)
        reason = prover.reason_against(grammar)
        if reason is not None:
            raise InputError(f"{where} cannot be enforced: {reason}", param=where, code="invalid_schema")
    except InputError as error:
        return {"error": [error.message, error.param, error.code]}
    except RecursionError:
        return {"error": [f"{where} is nested too deeply", where, "invalid_schema"]}
    except BaseException as fault:  # the library's panics are no ``Exception``
        if isinstance(fault, SystemExit | KeyboardInterrupt):
            raise
        return {"error": [f"{where} cannot be enforced: its compilation fails", where, "invalid_schema"]}
    return {"grammar": grammar}


def write(request: Mapping[str, Any]) -> str:
    """The grammar that a request asks for: of a JSON schema, or of calls of tools.

    Raises:
        InputError: as :func:`json_schema` and :func:`call_grammar` do.
    """
    options = dict(request["options"])
    if "schema" in request:
        return json_schema(request["schema"], request["where"], **options)
    forms = {name: TextForm(*form) for name, form in options.pop("forms", {}).items()}
    return call_grammar(request["tools"], request["controls"], forms=forms, **options)


def _tell(answer: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
