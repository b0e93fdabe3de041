"""How one sentence becomes many: held-out phrasings, politeness, case and punctuation as people type them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lexicon import Split


@dataclass(frozen=True)
class Phrases:
    """Ways to say one thing; those in `held` are kept for the evaluation."""

    train: Sequence[str]
    held: Sequence[str]

    def pick(self, rng: Random, split: Split) -> str:
        return rng.choice(self.held if split == "held" else self.train)


def composed(rng: Random, split: Split, held: Sequence[str], *parts: Sequence[str]) -> str:
    """One choice of each part, put together; never what is held. The evaluation draws from `held` alone."""
    if split == "held":
        return rng.choice(held)
    while True:
        text = "".join(rng.choice(part) for part in parts)
        if text not in held:
            return text


# Factors on the weights of the mixture, by kind of turn: training raises what the last evaluation found weak.
BOOST: dict[str, float] = {}


def weighted(rng: Random, kinds: Mapping[str, float]) -> str:
    return rng.choices(list(kinds), [weight * BOOST.get(kind, 1.0) for kind, weight in kinds.items()])[0]


BEFORE = ("please ", "can you ", "could you ", "hey, ", "ok, ", "now ", "so, ", "would you please ",
    "can you please ",
          "I want you to ", "I would like you to ", "go ahead and ", "next, ", "then ", "kindly ",
          "I need you to ", "would you ", "will you ", "it would be nice if you could ",
          "I would be glad if you could ",
          "would you be so kind and ", "may I ask you to ", "do me a favour and ", "my next wish: ",
          "your next task: ", "well, ",
          "right, ", "fine, ", "again: ", "could you kindly ", "for my sister, ", "in short, ", "first, ",
          "also ", "let's see, ",
          "quickly ", "if you can, ", "try to ", "be so kind and ", "and now ", "thanks. now ",
          "great, now ", "good, then ",
          "hello, ", "hi, could you ", "I want to see if you can ", "help me and ", "let me see you ",
          "is it possible to ",
          "one more: ", "task: ", "just ", "simply ", "I'd like you to ", "you should ", "it is time to ",
          "the next one: ")
HELD_BEFORE = ("would you kindly ", "it would be great if you could ", "alright, ", "for me, ")
AFTER = (" please", " for me", ", please", " now", ", thanks", " thanks", ", ok?", " if you can",
    " for me please", " at once", " if possible", ", will you?", " today", " again", ", would you?",
    ", I need it", " quickly")


def polite(rng: Random, text: str, split: Split, after: bool = True) -> str:
    """An order ("spell cat") with or without manners around it. `after`: nothing to be copied stands last."""
    if rng.random() < 0.45:
        text = rng.choice(HELD_BEFORE if split == "held" and rng.random() < 0.5 else BEFORE) + text
    elif after and rng.random() < 0.25:
        text += rng.choice(AFTER)
    return text


def typed(rng: Random, text: str, keep_case: bool = False) -> str:
    """The sentence as someone might type it. `keep_case`: it carries something to be copied letter by
    letter."""
    kind = rng.random()
    if text.startswith("{"):  # what comes first is to be copied: its case is not ours
        return text
    if kind < 0.55:
        text = text[0].upper() + text[1:]
        if text[-1].isalnum() and rng.random() < 0.7:
            text += "."
    elif kind < 0.7 and not keep_case:
        text = text.lower().rstrip("?.!") if rng.random() < 0.5 else text.lower()
    elif kind < 0.85:
        text = text.rstrip(".?!") if rng.random() < 0.5 else text
    elif kind < 0.9:
        text = text.rstrip(".?!") + rng.choice(("!", "??", "...", " ?", "!!"))
    else:
        text = text[0].upper() + text[1:]
    return text


def a_or_an(text: str) -> str:
    """"a dog", "an old dog": by the first letter, made-up words too."""
    return f"{'an' if text[:1].lower() in 'aeiou' else 'a'} {text}"


def fill(text: str, slot: str, value: str) -> str:
    """`value` in every place of `slot`, and the article before it as English wants it."""
    if value[:1].lower() in "aeiou":
        text = text.replace(f" a {slot}", f" an {slot}")
        if text.startswith(f"a {slot}"):
            text = f"an{text[1:]}"
        text = text.replace(f"A {slot}", f"An {slot}")
    return text.replace(slot, value)


def joined(parts: Sequence[str]) -> str:
    """a, b and c"""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
