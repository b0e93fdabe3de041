"""Skill 3: sums and differences, digit by digit in the thought."""

from __future__ import annotations

from random import Random

from conversation import State, Turn
from phrasing import Phrases, typed

ADD = Phrases(("what is {a} + {b}?", "what is {a} plus {b}?", "{a} + {b}", "{a}+{b}", "add {a} and {b}",
    "what's {a} + {b}?",
               "calculate {a} + {b}", "{a} + {b} = ?", "how much is {a} + {b}?", "the sum of {a} and {b}?",
               "{a} plus {b}",
               "what is the sum of {a} and {b}?", "please add {a} and {b}", "compute {a} + {b}",
               "can you add {a} to {b}?",
               "how much is {a} plus {b}?", "what does {a} + {b} make?", "{a}+{b}=", "whats {a}+{b}",
               "sum {a} and {b}", "tell me {a} + {b}", "work out {a} + {b}",
               "what do {a} and {b} add up to?", "what do I get for {a} + {b}?",
               "what is {a} and {b} together?",
               "I add {a} and {b}, what do I get?", "tell me the sum of {a} and {b}"),
              ("tell me what {a} + {b} is", "could you work out {a} plus {b}?",
              "what do I get when I add {a} and {b}?"))
SUBTRACT = Phrases(("what is {a} - {b}?", "what is {a} minus {b}?", "{a} - {b}", "{a}-{b}",
    "subtract {b} from {a}",
                    "what's {a} - {b}?", "calculate {a} - {b}", "{a} - {b} = ?", "how much is {a} - {b}?",
                    "what is the difference of {a} and {b}?", "compute {a} - {b}", "take {b} away from {a}",
                    "{a} minus {b}",
                    "how much is {a} minus {b}?", "{a}-{b}=", "whats {a}-{b}", "what is {a} less {b}?",
                    "tell me {a} - {b}", "work out {a} - {b}",
                    "what is left of {a} if you take {b} away?", "what remains when {b} is taken from {a}?",
                    "{a} take away {b}",
                    "what do I get for {a} - {b}?", "if I take {b} from {a}, what remains?"),
                   ("tell me what {a} - {b} is", "could you work out {a} minus {b}?",
                   "what remains of {a} if I take {b}?"))
MORE = Phrases(("I have {a} {things} and get {b} more. How many do I have?",
                "there are {a} {things} in a box and {b} in another. How many are there?",
                "{name} has {a} {things} and buys {b} more. How many does {name} have?",
                "{name} found {a} {things} and {other} found {b}. How many did they find?",
                "I bought {a} {things} and then {b} more. How many did I buy?",
                "I got {a} {things} on Sunday and {b} on Friday. How many did I get?",
                "{name} bought {a} {things} today and {b} yesterday. How many did {name} buy?"),
               ("I bought {a} {things} on Monday and {b} on Tuesday. How many did I buy?",))
FEWER = Phrases(("I have {a} {things} and give away {b}. How many are left?",
                 "{name} has {a} {things} and loses {b}. How many are left?",
                 "there are {a} {things} and {name} takes {b}. How many remain?",
                 "I had {a} {things} and lost {b}. How many do I have left?",
                 "{name} had {a} {things} and sold {b}. How many does {name} still have?",
                 "I own {a} {things} and sell {b}. How many do I still own?"),
                ("I had {a} {things} and sold {b}. How many do I still have?",))
THEN_ADD = ("add {b} to that", "plus {b}", "now add {b}", "and plus {b}?", "add {b} more")
THEN_SUBTRACT = ("subtract {b} from that", "minus {b}", "now subtract {b}", "and minus {b}?", "take away {b}")


def steps_of_sum(a: int, b: int) -> str:
    """47 + 85: 7 + 5 = 12, carry 1. 4 + 8 + 1 = 13. 132."""
    parts, carry, total = [], 0, a + b
    x, y = a, b
    while x or y or not parts:
        digits = f"{x % 10} + {y % 10}" + (" + 1" if carry else "")
        here = x % 10 + y % 10 + carry
        x, y = x // 10, y // 10
        carry = here // 10
        parts.append(f"{digits} = {here}" + (", carry 1" if carry and (x or y) else ""))
    return f"{a} + {b}: " + ". ".join(parts) + f". {total}"


def steps_of_difference(a: int, b: int) -> str:
    """85 - 47: 15 - 7 = 8, borrow 1. 8 - 4 - 1 = 3. 38."""
    if a < b:
        return f"{a} is less than {b}. " + steps_of_difference(b, a) + f". So -{b - a}"
    parts, borrow = [], 0
    x, y = a, b
    while x or not parts:
        top, bottom = x % 10, y % 10 + borrow
        lend = top < bottom
        digits = f"{top + 10 * lend} - {y % 10}" + (" - 1" if borrow else "")
        parts.append(f"{digits} = {top + 10 * lend - bottom}" + (", borrow 1" if lend else ""))
        borrow, x, y = int(lend), x // 10, y // 10
    return f"{a} - {b}: " + ". ".join(parts) + f". {a - b}"


def _numbers(rng: Random, state: State) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.55 or state.lexicon.split == "held":
        return state.lexicon.pair(rng, 10, 99)
    if kind < 0.87:  # a digit on one side or on both, which leaves the thought a step or none after the first
        low, high = rng.randint(0, 9), rng.choice((rng.randint(0, 9), rng.randint(0, 9), rng.randint(10, 99)))
        return (low, high) if rng.random() < 0.4 else (high, low)
    if kind < 0.93:
        return state.lexicon.pair(rng, 0, 99)
    return rng.randint(0, 999), rng.randint(0, 999)


def arithmetic(state: State) -> Turn:
    rng, split = state.rng, state.lexicon.split
    a, b = _numbers(rng, state)
    adds = rng.random() < 0.5
    kind = rng.random()
    if kind < 0.15:
        if not adds and a < b:
            a, b = b, a
        text = (MORE if adds else FEWER).pick(rng, split)
        things = rng.choice(state.lexicon.things) + "s"
        for key, value in (("{a}", str(a)), ("{b}", str(b)), ("{things}", things), ("{name}",
            state.lexicon.name(rng)),
                           ("{other}", state.lexicon.name(rng))):
            text = text.replace(key, value)
        text = text[0].upper() + text[1:]
    elif kind < 0.25 and state.last_number is not None and 0 <= state.last_number <= 199:
        a = state.last_number
        text = typed(rng, rng.choice(THEN_ADD if adds else THEN_SUBTRACT).replace("{b}", str(b)))
    else:
        text = typed(rng, (ADD if adds else SUBTRACT).pick(rng, split).replace("{a}", str(a)).replace("{b}",
            str(b)))
    result = a + b if adds else a - b
    state.last_number = result
    steps = steps_of_sum(a, b) if adds else steps_of_difference(a, b)
    return Turn(text, f"{a} {'+' if adds else '-'} {b} = {result}", steps + ".", "sum")
