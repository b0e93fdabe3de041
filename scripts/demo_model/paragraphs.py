"""Text that says nothing that is ever asked for."""

from __future__ import annotations

from random import Random

from conversation import State

SMALL = "the a my your this that one every some her his our".split()
VERBS = """
    sees likes finds takes makes wants keeps sells paints holds watches hears follows loves brings
    carries opens moves needs hides
""".split()



def some_words(rng: Random, state: State, n: int) -> str:
    """n words in a row, as a sentence would have them or as a heap; of few words now and then, so that some
    come twice."""
    x = state.lexicon
    heap = rng.random() < 0.4
    things = [*x.things, *x.animals]
    few = [x.word(rng) for _ in range(4)] if rng.random() < 0.25 else []
    if few:
        things = rng.sample(things, 3)
    words = []
    for i in range(n):
        if heap:
            words.append(rng.choice(few) if few and rng.random() < 0.6 else x.word(rng))
        else:
            kind = i % 5
            words.append(rng.choice(SMALL) if kind in (0, 3) else rng.choice(VERBS) if kind == 2
                         else rng.choice(x.adjectives) if kind == 4 else rng.choice(things))
    return " ".join(words)


def paragraph(rng: Random, state: State, n_sentences: int) -> str:
    """Text that says nothing that is ever asked for. Other people's facts are in it: they must not be taken
    for the user's."""
    x = state.lexicon
    sentences = []
    for _ in range(n_sentences):
        kind = rng.random()
        if kind < 0.55:
            sentence = some_words(rng, state, rng.randint(4, 12))
        elif kind < 0.65:
            thing = f"{rng.choice(x.adjectives)} {rng.choice(x.things)}"
            sentence = f"{x.name(rng)} went to {x.city(rng)} with a {thing}"
        elif kind < 0.75:
            sentence = f"{x.name(rng)} likes {rng.choice(x.foods)} and {rng.choice(x.hobbies)}"
        elif kind < 0.85:
            thing, place = rng.choice(x.things), rng.choice(x.places)
            sentence = f"the {thing} near the {place} is {rng.choice(x.colours)}"
        else:
            sentence = f"there were {rng.randint(2, 99)} {rng.choice(x.animals)}s at {x.company(rng)}"
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return " ".join(sentences)
