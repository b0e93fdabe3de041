"""Skill 4: repeat, spell, reverse and count."""

from __future__ import annotations

from random import Random

from conversation import State, Turn
from lexicon import HELD_WORDS, Lexicon, Split
from paragraphs import some_words
from phrasing import Phrases, composed, polite, typed, weighted

SPELL = Phrases(("spell {w}", "spell the word {w}", "how do you spell {w}?", "how is {w} spelled?",
    "spell out {w}",
                 "give me the letters of {w}", "spell {w} letter by letter", "how do I spell {w}?",
                 "spelling of {w}?", "write {w} letter after letter", "write out the letters of {w}",
                 "which letters are in {w}?",
                 "tell me the letters of {w}", "list the letters of {w}", "type {w} one letter at a time",
                 "write {w} with dashes",
                 "what letters make {w}?", "the word {w} letter by letter", "what is the spelling of {w}?"),
                ("write {w} letter by letter", "what are the letters of {w}?"))
REVERSE = Phrases(("reverse {w}", "reverse the word {w}", "write {w} backwards", "spell {w} backwards",
    "say {w} backwards",
                   "what is {w} backwards?", "turn {w} around", "what is {w} in reverse?", "{w} backwards",
                   "flip the word {w}",
                   "what's {w} reversed?", "reverse the letters of {w}", "read {w} backwards",
                   "read {w} from the end",
                   "write {w} from back to front", "{w} from back to front", "the letters of {w} in reverse",
                   "print {w} backwards",
                   "order the letters of {w} from last to first", "put {w} in reverse",
                   "give me {w} in reverse order"),
                  ("read {w} from back to front", "put the letters of {w} in reverse order"))
LETTERS = Phrases(("how many letters are in {w}?", "count the letters in {w}",
    "how many letters does {w} have?",
                   "how long is the word {w}?", "how many letters are there in {w}?",
                   "number of letters in {w}?", "tell me the number of letters in {w}", "count letters: {w}",
                   "is {w} a long word?",
                   "what is the length of {w}?"),
                  ("tell me how many letters {w} has",))
REPEAT = Phrases(("repeat: {t}", "repeat after me: {t}", "say {t}", "say: {t}", "repeat {t}",
    "repeat this: {t}",
                  "say the following: {t}", "repeat the following text: {t}", "copy this: {t}", "echo {t}",
                  "just say {t}",
                  "write {t}", "type this: {t}", "reply with exactly this: {t}", "respond with: {t}",
                  "send back: {t}", "send {t} back to me",
                  "say back: {t}", "write this back: {t}", "return this: {t}", "output this: {t}",
                  "print: {t}", "tell me this: {t}",
                  "give back this text: {t}", "say this: {t}"),
                 ("say this back to me: {t}", "send this back: {t}"))
WORDS = Phrases(("how many words are in: {t}", "count the words: {t}", "count the words in: {t}",
    "how many words: {t}",
                 "how many words does this have: {t}", "how many words are in this sentence: {t}",
                 "word count: {t}",
                 "how many words are there in {t}?", "the number of words in: {t}",
                 "what is the number of words in: {t}",
                "give me the number of words in: {t}", "count how many words: {t}", "words in: {t}"),
                ("tell me the number of words in: {t}",))
FIRST = Phrases(("what is the first letter of {w}?", "first letter of {w}?",
    "which letter does {w} start with?"),
                ("with which letter does {w} begin?",))
LAST = Phrases(("what is the last letter of {w}?", "last letter of {w}?", "which letter does {w} end with?"),
               ("with which letter does {w} end?",))
UPPER = Phrases(("write {w} in capital letters", "write {w} in uppercase", "{w} in capitals",
    "uppercase {w}"),
                ("put {w} in capital letters",))
# The same in parts. Held are the wordings above: composed never gives one.
SHOW = ("write", "type", "say", "give me", "tell me", "show me", "print", "name", "list", "dictate",
    "send me", "output", "state",
    "write down", "put down", "return", "recite")
WORD = (" {w}", " {w}", " the word {w}", " the name {w}", " my word {w}", " this word: {w}")
APART = (" letter after letter", " one letter at a time", " with dashes between the letters",
    " as single letters", " in letters",
    " separated by dashes", " with a dash after each letter", " as letters", " one letter after the other",
    " spelled out",
    " by its letters", " letter for letter", " cut into letters", " in single letters",
    " with its letters apart", " slowly, in letters")
LETTERS_OF = (" the letters of {w}", " all letters of {w}", " every letter of {w}", " each letter in {w}",
    " the letters in {w}",
    " the spelling of {w}", " how to spell {w}", " how {w} is spelled", " the letters that make {w}",
    " the letters one by one: {w}")
BACK = (" backwards", " in reverse", " from back to front", " from the end",
    " from the last letter to the first", " from right to left",
    " in reverse order", " the other way round", " the wrong way round", " starting at the end",
    " from end to start", " reversed",
    " turned around", " with its letters reversed", " beginning with the last letter", " back to front",
    " from the end to the start")
COUNT = ("count", "tell me", "give me", "say", "find", "work out", "what is", "write", "I need", "I want",
    "show", "state", "name")
HOW_MANY = (" the words", " how many words there are", " the count of words", " the word count",
    " how many words you see",
    " the amount of words", " how many words stand", " all the words", " the total of words", " each word")
IN_TEXT = (" in: {t}", " of: {t}", " here: {t}", ": {t}", " in this: {t}", " in this text: {t}",
    " in this line: {t}", ":\n{t}",
    " in the text: {t}", " for: {t}", " in the following: {t}")
COMPOSED = {
    "spell": ((SHOW, WORD, APART), (SHOW, LETTERS_OF)),
    "reverse": ((SHOW, WORD, BACK), (SHOW, (" the letters of {w}", " {w}", " the word {w}"), BACK)),
    "words": ((COUNT, HOW_MANY, IN_TEXT),),
}


def _wording(rng: Random, split: Split, kind: str, listed: Phrases) -> str:
    if split == "train" and rng.random() < 0.4:
        return composed(rng, split, listed.held, *rng.choice(COMPOSED[kind]))
    return listed.pick(rng, split)


KINDS = {"repeat": 18, "spell": 25, "reverse": 34, "words": 19, "letters": 8, "first": 2, "last": 2,
    "upper": 2}


def _quoted(rng: Random, text: str) -> str:
    kind = rng.random()
    return f'"{text}"' if kind < 0.22 else f"'{text}'" if kind < 0.32 else text


def _knotty(rng: Random, x: Lexicon) -> str:
    """A word that says a letter or a piece of itself twice, or is of single letters: where a copy jumps."""
    while True:
        word, kind = x.pieced(rng), rng.random()
        i = rng.randrange(len(word))
        if kind < 0.35:
            word = word[: i + 1] + word[i:]
        elif kind < 0.7:
            piece, j = word[i : i + rng.choice((2, 2, 3))], rng.randrange(len(word) + 1)
            word = word[:j] + piece + word[j:]
        else:
            few = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randint(3, 6))
            word = "".join(rng.choice(few) for _ in range(rng.randint(4, 9)))
        if len(word) <= 13 and x.mine(word) and word not in HELD_WORDS:
            return word


def _a_word(rng: Random, state: State) -> str:
    x, kind = state.lexicon, rng.random()
    if x.split == "train" and x.pieces and (special := rng.random()) < 0.35:
        if special < 0.07:
            return f"{x.name(rng).split()[0]} {x.fresh(rng).capitalize()}"
        word = _knotty(rng, x) if special < 0.22 else x.made_up(rng, rng.choice((2, 2, 3)))
        return word.capitalize() if rng.random() < 0.15 else word
    if kind < 0.1:
        return x.name(rng)
    word = x.pieced(rng) if x.split == "train" and x.pieces and rng.random() < 0.35 else x.word(rng)
    while len(word) > 12 and rng.random() < 0.9:
        word = x.word(rng)
    return word.capitalize() if kind < 0.15 else word


def wordplay(state: State, kind: str | None = None) -> Turn:
    rng, split = state.rng, state.lexicon.split
    kind = kind or weighted(rng, KINDS)
    if kind == "repeat":
        return _repeat(state)
    if kind == "words":
        n = rng.randint(8, 13) if split == "train" and rng.random() < 0.35 else rng.randint(1, 12)
        text = some_words(rng, state, n)
        if n > 2 and rng.random() < 0.3:
            text = text[0].upper() + text[1:] + "."
        counted = ", ".join(f"{i} {word}" for i, word in enumerate(text.rstrip(".").split(), 1))
        asked = _wording(rng, split, "words", WORDS)
        asked = asked[0].upper() + asked[1:] if rng.random() < 0.6 else asked
        return Turn(asked.replace("{t}", _quoted(rng, text)),
                    "There is 1 word." if n == 1 else f"There are {n} words.", f"{counted}.", "words")
    word = _a_word(rng, state)
    shown = _quoted(rng, word)
    letters = "-".join(word)
    if kind == "spell":
        text, answer, thought = SPELL, letters, f"The letters of {word}: {' '.join(word)}."
    elif kind == "reverse":
        text, answer = REVERSE, word[::-1]
        thought = f"The letters of {word}: {' '.join(word)}. Backwards: {' '.join(word[::-1])}."
    elif kind == "letters":
        text, answer = LETTERS, f"{word} has {len(word)} letters."
        thought = ", ".join(f"{i} {letter}" for i, letter in enumerate(word, 1)) + "."
    elif kind == "first":
        text, answer = FIRST, f"{word} starts with {word[0]}."
        thought = f"The letters of {word}: {' '.join(word)}."
    elif kind == "last":
        text, answer = LAST, f"{word} ends with {word[-1]}."
        thought = f"The letters of {word}: {' '.join(word)}."
    else:
        text, answer = UPPER, word.upper()
        thought = f"The letters of {word}: {' '.join(word)}. In capitals: {' '.join(word.upper())}."
    asked = _wording(rng, split, kind, text) if kind in COMPOSED else text.pick(rng, split)
    if not asked.endswith("?") and not asked.startswith("{w}"):
        asked = polite(rng, asked, split)
    return Turn(typed(rng, asked, keep_case=True).replace("{w}", shown), answer, thought, kind)


def _repeat(state: State) -> Turn:
    rng, split = state.rng, state.lexicon.split
    kind = rng.random()
    if kind < 0.3:
        text = _a_word(rng, state)
    elif kind < 0.75:
        text = some_words(rng, state, rng.randint(2, 10))
    elif kind < 0.85:
        text = state.lexicon.code(rng)
    else:
        text = some_words(rng, state, rng.randint(3, 8))
        text = text[0].upper() + text[1:] + rng.choice(".!?")
    asked = REPEAT.pick(rng, split)
    if ":" not in asked or rng.random() < 0.3:
        asked = polite(rng, asked, split, after=False)
    asked = asked[0].upper() + asked[1:] if rng.random() < 0.6 else asked
    shown = f'"{text}"' if rng.random() < 0.25 else text
    return Turn(asked.replace("{t}", shown), text, "They want me to repeat their text.", "repeat")
