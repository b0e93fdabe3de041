"""A short walk through conversations: a warm engine and a fresh one must give the same replies."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.planner import SlotKey
from cache.ring import RingLimits
from cache.store import Store
from model.codec import StateCodec
from model.device import Device
from model.forward import Forward
from model.sampling import SamplingParams
from model.text.chat import ChatFormat, RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.check.result import Section, pass_bound
from server.engine.admission import LoopOptions
from server.engine.assembly import metadata
from server.engine.loop import EngineLoop
from server.events import Event, Failed, Finished, GenerationRequest, Planned, PlanReport, Progress

_N_REPLY = 12
_BUDGET = 2 << 30
_SYSTEM = "You are a careful assistant. Answer in one short sentence, and never guess. " * 6
_QUESTIONS = (
    "A train leaves Oslo at nine and needs seven hours to Bergen. When does it arrive?",
    "And if it stops for half an hour in Voss?",
    "Write that as a table of two rows, with the time of day in the second column, please.",
    "Thank you. What was the name of the first town?",
)

Messages = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of one engine.

    Attributes:
        ids: of the reply.
        logprobs: of its tokens, by their index.
        plan: what was reused.
    """

    ids: tuple[int, ...]
    logprobs: Mapping[int, float]
    plan: PlanReport


def check_walk(forward: Forward, device: Device, tokenizer: TextTokenizer) -> Section:
    """Compare turns, an edit, a retry, a shortened history and a repetition, each warm and cold."""
    section = Section("a conversation, warm against cold")
    bound = pass_bound(forward.fingerprint.dtype, device)
    chat = ChatFormat(tokenizer)
    warm = _new_loop(forward, tokenizer)
    n_reused = n_prompt = 0
    for name, messages in _walk():
        prompt = chat.render(messages)
        found, wanted = _ask(warm, prompt), _ask(_new_loop(forward, tokenizer), prompt)
        plan = found.plan
        n_reused, n_prompt = n_reused + plan.reused_tokens, n_prompt + plan.prompt_tokens
        told = f"{name} ({plan.mode}, {plan.reused_tokens} of {plan.prompt_tokens} tokens reused)"
        section.judge(told, _difference(forward, prompt, found, wanted), bound)
    section.notes.append(
        f"{n_reused} of {n_prompt} prompt tokens were reused. The figure is the largest difference of a "
        "token's log probability up to where the replies part, and how far apart the two tokens are there, "
        "over the spread of a fresh process's logits."
    )
    return section


def _ask(loop: EngineLoop, prompt: RenderedPrompt) -> Answer:
    """The complete greedy reply."""
    events: list[Event] = []
    request = GenerationRequest(
        id="check",
        slot=SlotKey.for_session(None, "check"),
        prompt=replace(prompt, opens_thought=False),  # thoughts have no log probabilities
        max_tokens=_N_REPLY,
        sampling=SamplingParams(temperature=0.0),
        top_logprobs=0,
    )
    loop.submit(request, events.append)
    while loop.step():
        pass
    failed = [event.message for event in events if isinstance(event, Failed)]
    assert not failed, failed
    told = [token for event in events if isinstance(event, Progress) for token in event.logprobs]
    return Answer(
        ids=next(event.token_ids for event in events if isinstance(event, Finished)),
        logprobs={n: token.logprob for n, token in enumerate(told)},
        plan=next(event.report for event in events if isinstance(event, Planned)),
    )


def _walk() -> list[tuple[str, Messages]]:
    """The prompts in order. The assistant's messages are fixed, so that prompts do not depend on the
    model."""
    history: Messages = [{"role": "system", "content": _SYSTEM}]
    walk: list[tuple[str, Messages]] = []
    for n, question in enumerate(_QUESTIONS):
        history = [*history, {"role": "user", "content": question}]
        walk.append((f"turn {n + 1}", history))
        history = [*history, {"role": "assistant", "content": f"That is answer number {n + 1}."}]
    edited = [*walk[-1][1][:-1], {"role": "user", "content": "Which town did it stop in?"}]
    walk += [("the last message edited", edited), ("the same again", edited), ("two turns back", walk[1][1])]
    other: Messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "Good morning!"}]
    return [*walk, ("another conversation", other), ("the first one again", walk[-1][1])]


def _difference(forward: Forward, prompt: RenderedPrompt, found: Answer, wanted: Answer) -> float:
    shared = 0
    while shared < min(len(found.ids), len(wanted.ids)) and found.ids[shared] == wanted.ids[shared]:
        shared += 1
    both = [n for n in range(shared) if n in found.logprobs and n in wanted.logprobs]
    error = max((abs(found.logprobs[n] - wanted.logprobs[n]) for n in both), default=0.0)
    return max(error, _gap(forward, prompt, shared, found.ids, wanted.ids))


def _gap(
    forward: Forward, prompt: RenderedPrompt, shared: int, found: Sequence[int], wanted: Sequence[int]
) -> float:
    """The margin by which the fresh engine prefers its own token where the replies diverge, over the spread
    of its logits.

    At low precision two tokens may be equally likely, which is no fault.
    """
    if shared == len(found) == len(wanted):
        return 0.0
    if shared in (len(found), len(wanted)):
        return math.inf  # one reply ends where the other continues
    fed: NDArray[np.uint32] = np.concatenate([prompt.ids, np.array(wanted[:shared], np.uint32)])
    logits = np.array(forward.prefill(forward.new_state(), fed).logits)
    return float(abs(logits[wanted[shared]] - logits[found[shared]]) / logits.std())


def _new_loop(forward: Forward, tokenizer: TextTokenizer) -> EngineLoop:
    store = Store(
        metadata(forward, tokenizer, forward.config.max_context),
        budget_bytes=_BUDGET,
        ring_limits=RingLimits(),
        share_prefixes=True,
        clock=time.monotonic,
        new_state=forward.new_state,
        codec=StateCodec(forward.new_state, forward.fingerprint.mtp),
    )
    options = LoopOptions(checks_store=True, idle_prefill=False)
    return EngineLoop(forward, tokenizer, store, stop_ids=frozenset(), options=options)
