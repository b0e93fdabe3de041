"""A message that reads the same but is tokenised otherwise may keep the ids that were fed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.forward import Forward
from model.text.chat import RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.engine.admission import LoopOptions
from server.engine.loop import EngineLoop
from server.engine.planning import adopt_fed_ids
from tests.fakes.driver import Driver

MakeLoop = Callable[..., EngineLoop]

ASKED = "<|im_start|>user\nWhat is on the shelf?<|im_end|>\n<|im_start|>assistant\n"
FOLLOWED = "<|im_end|>\n<|im_start|>user\nAnd below it?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "The seventeen letters lie beside the lantern."


def prompt_of(ids: np.ndarray, tokenizer: TextTokenizer) -> RenderedPrompt:
    opener = tokenizer.controls["<|im_start|>"].id
    starts = tuple(np.flatnonzero(ids == opener).tolist())
    return RenderedPrompt(
        ids, message_starts=starts, message_roles=("user", "assistant", "user", "assistant")
    )


def letters(text: str, tokenizer: TextTokenizer) -> np.ndarray:
    """``text`` in more tokens than the tokenizer would use: one for each letter."""
    return np.concatenate([tokenizer.encode_text(letter) for letter in text])


def retold(tokenizer: TextTokenizer, answer: str = ANSWER) -> tuple[np.ndarray, RenderedPrompt]:
    """The ids that were fed for an answer, and the prompt in which a client sends it back."""
    end = tokenizer.encode("<|im_end|>")
    fed = np.concatenate([tokenizer.encode(ASKED), letters(ANSWER, tokenizer), end])
    return fed, prompt_of(tokenizer.encode(ASKED + answer + FOLLOWED), tokenizer)


def test_a_message_that_reads_the_same_keeps_the_ids_that_were_fed(tokenizer: TextTokenizer) -> None:
    fed, prompt = retold(tokenizer)
    adopted, n_adopted = adopt_fed_ids(prompt, fed, tokenizer, end_ids=_ends(tokenizer), max_tokens=10_000)
    assert n_adopted == 1
    assert adopted.ids[: len(fed)].tolist() == fed.tolist()
    assert tokenizer.decode(adopted.ids) == tokenizer.decode(prompt.ids)
    opener = tokenizer.controls["<|im_start|>"].id
    assert [adopted.ids[start] for start in adopted.message_starts] == [opener] * 4


def test_a_message_that_differs_by_a_letter_is_taken_as_it_was_sent(tokenizer: TextTokenizer) -> None:
    fed, prompt = retold(tokenizer, ANSWER.replace("lantern", "lanterns"))
    adopted, n_adopted = adopt_fed_ids(prompt, fed, tokenizer, end_ids=_ends(tokenizer), max_tokens=10_000)
    assert n_adopted == 0
    assert adopted is prompt


def test_a_control_token_is_never_taken_for_the_text_of_its_name(tokenizer: TextTokenizer) -> None:
    end = tokenizer.encode("<|im_end|>")
    fed = np.concatenate([tokenizer.encode(ASKED), tokenizer.encode_text("<tool_call>"), end])
    prompt = prompt_of(tokenizer.encode(ASKED + "<tool_call>" + FOLLOWED), tokenizer)
    _, n_adopted = adopt_fed_ids(prompt, fed, tokenizer, end_ids=_ends(tokenizer), max_tokens=10_000)
    assert n_adopted == 0


def test_ids_are_not_kept_when_the_prompt_would_outgrow_the_context(tokenizer: TextTokenizer) -> None:
    fed, prompt = retold(tokenizer)
    limit = len(prompt.ids)
    _, n_adopted = adopt_fed_ids(prompt, fed, tokenizer, end_ids=_ends(tokenizer), max_tokens=limit)
    assert n_adopted == 0


def test_with_the_switch_on_the_reply_is_that_of_a_cold_run_on_the_ids_that_were_fed(
    make_loop: MakeLoop, demo_forward: Forward, tokenizer: TextTokenizer
) -> None:
    fed, prompt = retold(tokenizer)
    options = LoopOptions(keep_fed_ids=True, checks_store=True)
    warm = Driver(make_loop(forward=demo_forward, options=options, stop_ids=_ends(tokenizer)))
    warm.ask(fed.tolist(), max_tokens=1)
    outcome = warm.ask(prompt)
    adopted, _ = adopt_fed_ids(prompt, fed, tokenizer, end_ids=_ends(tokenizer), max_tokens=10_000)
    assert "kept the ids that were fed" in outcome.report.reason
    assert outcome.report.shared_tokens >= len(fed)
    cold = Driver(make_loop(forward=demo_forward, stop_ids=_ends(tokenizer)))
    assert outcome.token_ids == cold.ask(adopted).token_ids


def test_with_the_switch_off_the_ids_of_the_prompt_are_read(
    make_loop: MakeLoop, demo_forward: Forward, tokenizer: TextTokenizer
) -> None:
    fed, prompt = retold(tokenizer)
    warm = Driver(make_loop(forward=demo_forward, stop_ids=_ends(tokenizer)))
    warm.ask(fed.tolist(), max_tokens=1)
    outcome = warm.ask(prompt)
    assert outcome.report.shared_tokens < len(fed)
    cold = Driver(make_loop(forward=demo_forward, stop_ids=_ends(tokenizer)))
    assert outcome.token_ids == cold.ask(prompt).token_ids


def _ends(tokenizer: TextTokenizer) -> frozenset[int]:
    return frozenset(tokenizer.eos_ids)
