"""Skill 2: facts told, asked for, corrected, and asked for without having been told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from conversation import Fact, State, Turn
from lexicon import Lexicon
from paragraphs import paragraph
from phrasing import Phrases, a_or_an, fill, joined, typed

RELATIONS = """
    brother sister mother father friend boss neighbour uncle aunt cousin son daughter wife husband
    teacher grandmother grandfather colleague roommate dentist
""".split()
SEASONS = ["spring", "summer", "autumn", "winter"]
MONTHS = """
    January February March April May June July August September October November December
""".split()
CATEGORIES = ["song", "book", "movie", "band", "game", "word", "flower", "planet", "team", "shop", "street",
    "poem"]
KEYED = "code password pin key number combination label".split()
TALKED_ABOUT = "project boat team ship robot company car house book band shop song plan file server".split()


@dataclass(frozen=True)
class Attribute:
    """One kind of fact, already bound to its subject ("my sister's name")."""

    key: str
    noun: str  # as the assistant says it: "your sister's name"
    sentence: str  # "your sister's name is {v}"
    tells: Phrases  # as the user says it
    asks: Phrases
    third: str  # as a system prompt says it
    value: Callable[[Random, Lexicon], str]


def _simple(key: str, mine: str, value: Callable[[Random, Lexicon], str], *, tells: tuple[str, ...] = (),
            held_tells: tuple[str, ...] = (), asks: tuple[str, ...] = (), held_asks: tuple[str, ...] = (),
            sentence: str = "", third: str = "") -> Attribute:
    """An attribute of the user: `mine` is "name", "favourite colour"."""
    return Attribute(
        key=key,
        noun=f"your {mine}",
        sentence=sentence or f"your {mine} is {{v}}",
        tells=Phrases((f"my {mine} is {{v}}", f"my {mine} is {{v}}, remember that",
        f"just so you know, my {mine} is {{v}}",
                       f"remember that my {mine} is {{v}}", f"{{v}} is my {mine}",
                       f"please note: my {mine} is {{v}}", f"don't forget that my {mine} is {{v}}",
                       f"you should know my {mine} is {{v}}",
                       f"fyi my {mine} is {{v}}", f"my {mine}? {{v}}",
                       f"I want you to know that my {mine} is {{v}}", f"as for my {mine}, it is {{v}}",
                       *tells),
                      (f"keep in mind that my {mine} is {{v}}", f"by the way, my {mine} is {{v}}",
                      *held_tells)),
        asks=Phrases((f"what is my {mine}?", f"what's my {mine}?", f"do you know my {mine}?",
        f"tell me my {mine}",
                      f"what was my {mine}?", f"do you remember my {mine}?", f"what did I say my {mine} was?",
                      f"my {mine}?", f"say my {mine}", f"whats my {mine}", f"what is my {mine} again?",
                      f"so what is my {mine}?", f"remind me of my {mine}", f"recall my {mine}",
                      f"can you say my {mine}?",
                      f"I forgot my {mine}, what is it?", f"can you remind me what my {mine} is?",
                      f"tell me what my {mine} is",
                      f"do you still know my {mine}?", f"could you say what my {mine} is?",
                      f"which {mine} do I have?", f"name my {mine}", f"give me my {mine}",
                      f"I want to know my {mine}",
                      f"what have you noted as my {mine}?", f"say what my {mine} is",
                      f"let me hear my {mine}",
                      f"could you repeat my {mine}?", f"my {mine} is what?", f"my {mine} was what again?",
                      f"what did I tell you about my {mine}?", f"do you have my {mine}?",
                      f"could you name my {mine}?",
                      f"can you give me my {mine}?", f"are you able to say my {mine}?", f"look up my {mine}",
                      f"what is the {mine} I told you?", f"I told you my {mine}, what is it?", *asks, *asks,
                      *asks),
                     (f"can you recall my {mine}?", f"remind me: what is my {mine}?",
                     f"could you tell me my {mine}?",
                      *held_asks)),
        third=third or f"the user's {mine} is {{v}}",
        value=value,
    )


def _world(key: str, noun: str, value: Callable[[Random, Lexicon], str], verb: str = "is", *,
           ask: tuple[str, ...] = (), held_ask: tuple[str, ...] = ()) -> Attribute:
    """A fact about something else: `noun` is "the code for the attic"."""
    sentence = f"{noun} {verb} {{v}}"
    return Attribute(
        key=key,
        noun=noun,
        sentence=sentence,
        tells=Phrases((sentence, f"remember: {sentence}", f"please remember that {sentence}",
        f"note that {sentence}",
                       f"just so you know, {sentence}", f"remember this: {sentence}"),
                      (f"keep in mind that {sentence}", f"by the way, {sentence}")),
        asks=Phrases(ask or (f"what {verb} {noun}?", f"tell me {noun}", f"do you know {noun}?",
                             f"do you remember {noun}?", f"what was {noun}?", f"{noun}?",
                             f"what is {noun} again?", f"remind me of {noun}", f"can you tell me {noun}?",
                             f"I forgot {noun}",
                             f"tell me what {noun} is", f"do you still know {noun}?", f"recall {noun}",
                             f"name {noun}", f"give me {noun}", f"I want to know {noun}",
                             f"let me hear {noun}",
                             f"what have you noted as {noun}?", f"say what {noun} is",
                             f"could you repeat {noun}?",
                             f"{noun} is what?", f"{noun} was what again?",
                             f"what did I tell you about {noun}?",
                             f"do you have {noun}?", f"can you give me {noun}?", f"look up {noun}",
                             f"what's {noun}?",
                             f"I told you {noun}, what is it?", f"which is {noun}?"),
                     held_ask or (f"can you recall {noun}?", f"remind me: what is {noun}?")),
        third=sentence,
        value=value,
    )


def draw_attribute(rng: Random, lexicon: Lexicon) -> Attribute:
    """A random kind of fact; the subjects of the open kinds are drawn too."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(USER_ATTRIBUTES)
    if kind < 0.53:
        relation = rng.choice(RELATIONS)
        return _simple(f"{relation} name", f"{relation}'s name", lambda r, x: x.name(r),
                       tells=(f"my {relation} is called {{v}}", f"my {relation} is named {{v}}"),
                       asks=(f"what is my {relation} called?", f"who is my {relation}?",
                       f"what name does my {relation} have?", f"how do I call my {relation}?"),
                       held_asks=(f"how is my {relation} called?",),
                       third=f"the user's {relation} is called {{v}}")
    if kind < 0.58:
        relation = rng.choice(RELATIONS)
        return _simple(f"{relation} city", f"{relation}'s city", lambda r, x: x.city(r),
                       tells=(f"my {relation} lives in {{v}}",), asks=(f"where does my {relation} live?",),
                       held_asks=(f"in which city does my {relation} live?",),
                       sentence=f"your {relation} lives in {{v}}",
                       third=f"the user's {relation} lives in {{v}}")
    if kind < 0.66:
        animal = rng.choice(lexicon.animals)
        return _simple(f"{animal} name", f"{animal}'s name", lambda r, x: x.name(r),
                       tells=(f"I have {a_or_an(animal)} called {{v}}", f"my {animal} is called {{v}}",
                              f"I have {a_or_an(animal)} named {{v}}"),
                       asks=(f"what is my {animal} called?", f"what's the name of my {animal}?",
                       f"what name does my {animal} have?",
                             f"what do I call my {animal}?", f"how do I call my {animal}?"),
                       held_asks=(f"how is my {animal} called?",),
                       third=f"the user has {a_or_an(animal)} called {{v}}")
    if kind < 0.76:
        things = (*lexicon.places, *lexicon.things)
        place = f"the {rng.choice(things)}" if rng.random() < 0.7 else lexicon.city(rng)
        noun = f"the {rng.choice(KEYED)} for {place}"
        return _world(noun, noun, lambda r, x: x.code(r) if r.random() < 0.6 else x.made_up(r))
    if kind < 0.84:
        thing = f"the {rng.choice(lexicon.things)}"
        return Attribute(
            f"{thing} place", f"where {thing} is", f"{thing} is {{v}}",
            Phrases((f"{thing} is {{v}}", f"I put {thing} {{v}}", f"remember that {thing} is {{v}}",
            f"{thing} stands {{v}}"),
                    (f"you can find {thing} {{v}}", f"keep in mind that {thing} is {{v}}")),
            Phrases((f"where is {thing}?", f"where's {thing}?", f"do you know where {thing} is?",
                     f"where did I put {thing}?", f"where is {thing} again?", f"where do I find {thing}?",
                     f"where is {thing} now?", f"where can I see {thing}?", f"can you find {thing}?"),
                    (f"where can I find {thing}?", f"tell me where {thing} is")),
            f"{thing} is {{v}}", lambda r,
            x: f"{r.choice(('in', 'in', 'behind', 'near'))} the {r.choice(x.places)}")
    if kind < 0.91:
        thing = f"the {rng.choice(lexicon.adjectives)} {rng.choice(lexicon.things)}"
        return _world(f"{thing} price", f"the price of {thing}", lambda r, _: f"{r.randint(2, 999)} euros",
                      ask=(f"how much does {thing} cost?", f"what does {thing} cost?",
                      f"what is the price of {thing}?",
                           f"how much was {thing}?", f"how much would {thing} be?", f"the price of {thing}?",
                           f"tell me the price of {thing}", f"how expensive is {thing}?",
                           f"what is {thing} worth?",
                           f"how much money is it for {thing}?", f"how much do I pay for {thing}?",
                           f"how much is the price of {thing}?", f"what must I pay for {thing}?",
                           f"how many euros is {thing}?", f"how many euros does {thing} cost?",
                           f"how much is it for {thing}?", f"how much did I say {thing} is?",
                           f"what price has {thing}?", f"how much is one to pay for {thing}?",
                           f"do you know how much {thing} is?", f"say how much {thing} costs"),
                      held_ask=(f"how much is {thing}?",), verb="is")
    thing = rng.choice(TALKED_ABOUT)
    return _world(f"{thing} name", f"the name of the {thing}", lambda r, x: x.company(r),
                  ask=(f"what is the {thing} called?", f"what is the name of the {thing}?",
                  f"what's the {thing} called?",
                       f"what name does the {thing} have?", f"how do I call the {thing}?"),
                  held_ask=(f"how is the {thing} called?",))


USER_ATTRIBUTES: tuple[Attribute, ...] = (
    *(3 * (_simple("name", "name", lambda r, x: x.name(r),
                   tells=("I am {v}", "I'm {v}", "hi, I am {v}", "hello, my name is {v}", "call me {v}",
                   "this is {v}",
                          "hi, I'm {v}", "hey, {v} here", "hi! my name is {v}", "hello! I am {v}",
                          "hi my name is {v}", "you can call me {v}", "my name's {v}"),
                   held_tells=("people call me {v}", "good morning, I am {v}"),
                   asks=("who am I?", "do you know who I am?", "what am I called?"),
                   held_asks=("and who am I?",),
                   third="the user is called {v}"),)),
    *(2 * (_simple("city", "city", lambda r, x: x.city(r), tells=("I live in {v}", "I am from {v}",
    "I live in {v} now", "I moved to {v}", "I have moved to {v}", "I now live in {v}", "we live in {v}",
    "I just moved to {v}", "we moved to {v}", "I come from {v}"),
                   held_tells=("my home is in {v}",), sentence="you live in {v}",
                   third="the user lives in {v}",
                   asks=("where do I live?", "where am I from?", "which city do I live in?",
                   "what city do I live in?"),
                   held_asks=("in which city do I live?",)),)),
    *(2 * (_simple("colour", "favourite colour", lambda r, x: r.choice(x.colours),
                   tells=("my favorite color is {v}", "I like {v} best", "the colour I like most is {v}"),
                   asks=("what is my favorite color?", "what's my favorite color?", "which colour do I like?",
                         "which colour do I like most?"), held_asks=("what colour do I like best?",)),)),
    _simple("food", "favourite food", lambda r, x: r.choice(x.foods), tells=("my favorite food is {v}",),
            asks=("what do I like to eat?", "what's my favorite food?", "what is my favorite food?")),
    _simple("job", "job", lambda r, x: r.choice(x.jobs), tells=("I am a {v}", "I work as a {v}",
    "I'm a {v} by trade"),
            held_tells=("I earn my money as a {v}",), sentence="you are a {v}", third="the user is a {v}",
            asks=("what do I do for a living?", "what do I do for work?"), held_asks=("what do I work as?",)),
    _simple("company", "company", lambda r, x: x.company(r), tells=("I work at {v}", "I work for {v}",
    "I now work at {v}"),
            sentence="you work at {v}", third="the user works at {v}", asks=("where do I work?",
            "who do I work for?"),
            held_asks=("at which company do I work?",)),
    _simple("age", "age", lambda r, _: str(r.randint(7, 99)), tells=("I am {v} years old",
    "I'm {v} years old", "I am {v}"),
            sentence="you are {v} years old", third="the user is {v} years old", asks=("how old am I?",
                "how many years old am I?", "what age do I have?", "how many years do I have?"),
            held_asks=("what age am I?",)),
    _simple("number", "lucky number", lambda r, _: str(r.randint(1, 9999))),
    _simple("number2", "favourite number", lambda r, _: str(r.randint(1, 999)),
    tells=("my favorite number is {v}",)),
    *(2 * (_simple("code", "code word", lambda r, x: x.made_up(r) if r.random() < 0.6 else r.choice(x.plain),
                   tells=("the code word is {v}", "our code word is {v}", "the secret word is {v}"),
                   held_tells=("let the code word be {v}",),
                   asks=("what is the code word?", "what's the code word?", "the code word?",
                   "what is the secret word?",
                         "tell me the code word"),
                   held_asks=("which code word did I give you?",), third="the code word is {v}",
                   sentence="the code word is {v}"),)),
    _simple("hobby", "hobby", lambda r, x: r.choice(x.hobbies), tells=("I like {v}",
    "in my free time I enjoy {v}"),
            asks=("what do I do in my free time?", "what do I like to do?")),
    _simple("month", "birthday month", lambda r, _: r.choice(MONTHS), tells=("I was born in {v}",
    "my birthday is in {v}"),
            sentence="your birthday is in {v}", third="the user's birthday is in {v}",
            asks=("when is my birthday?", "in which month is my birthday?", "in which month was I born?",
            "what month was I born in?", "when do I have my birthday?", "when do I celebrate my birthday?"),
            held_asks=("when was I born?",)),
    _simple("season", "favourite season", lambda r, _: r.choice(SEASONS), tells=("I love {v}",)),
    _simple("animal", "favourite animal", lambda r, x: "the " + r.choice(x.animals)),
    _simple("phone", "phone number", lambda r, _: f"{r.randint(100, 999)}-{r.randint(1000, 9999)}"),
    *(_simple(f"favourite {c}", f"favourite {c}", lambda r, x: x.made_up(r).capitalize(),
              tells=(f"my favorite {c} is {{v}}",), asks=(f"what's my favorite {c}?",)) for c in CATEGORIES),
)

CORRECT = Phrases(("actually, {t}", "sorry, {t}", "no wait, {t}", "correction: {t}", "I was wrong, {t}",
                   "I made a mistake, {t}", "wait, {t}", "that changed: {t}", "no, {t}", "oh, actually {t}",
                   "I changed my mind, {t}", "that was wrong. {t}", "{t}, not {o}", "update: {t}", "now {t}",
                   "let me correct: {t}", "I have to correct that: {t}",
                   "not {o}, {t}", "it's not {o}. {t}", "oops {t}", "sorry, wrong: {t}", "my mistake: {t}",
                   "no, not {o}. {t}", "{t}", "{t}"),
                  ("let me correct that: {t}", "oops, {t}", "not {o}: {t}"))


# Said without any of these: what has become of a fact, with the noun as the assistant says it.
CHANGES = ("{n} is now {v}", "{n} changed to {v}", "{n} is no longer {o} but {v}", "{n} is {v} now",
    "{n} has become {v}",
    "change {n} to {v}", "from now on {n} is {v}", "{n} isn't {o}, it's {v}", "{n} is not {o} but {v}",
    "make {n} {v}",
    "I said {n} is {o}, but it is {v}", "since today {n} is {v}", "the new value for {n} is {v}",
    "set {n} to {v}")
MOVES = ("I moved to {v}", "I moved from {o} to {v}", "I have moved to {v}", "we moved to {v}",
    "I left {o} and live in {v} now",
    "now I live in {v}", "I no longer live in {o}, I live in {v}", "last week I moved to {v}",
    "I live in {v} these days")
OPENINGS = ("so, ", "hey, ", "ok, ", "now: ", "and ", "well, ", "one question: ", "quick question: ",
    "tell me: ", "please tell me: ",
    "please, ", "hm, ", "sorry, ", "a question: ", "let me ask: ", "help me: ", "next: ", "thanks. ",
    "good. ", "great, ", "hello, ",
    "but ", "wait, ", "by the way, ", "just checking: ", "answer this: ", "do tell: ", "again: ",
    "let's see, ", "alright: ", "first: ")


def _question(rng: Random, state: State, attribute: Attribute) -> str:
    """One of the attribute's questions, in training often with something before it."""
    text = attribute.asks.pick(rng, state.lexicon.split)
    if state.lexicon.split == "train" and rng.random() < 0.3:
        opened = rng.choice(OPENINGS) + text
        return text if opened in attribute.asks.held else opened
    return text


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _store(state: State, attribute: Attribute, value: str) -> str:
    fact = state.facts.get(attribute.key)
    if fact is None:
        state.facts[attribute.key] = Fact(attribute.noun, attribute.sentence, [value])
    else:
        fact.values.append(value)
    return fill(attribute.sentence, "{v}", value)


def _acknowledge(attribute: Attribute, value: str, said: str) -> str:
    if attribute.key == "name":
        return f"Nice to meet you, {value}!"
    return f"Got it, {said}."


def tell(state: State, attribute: Attribute | None = None) -> Turn:
    rng = state.rng
    while attribute is None or attribute.key in state.facts:
        attribute = draw_attribute(rng, state.lexicon)
    value = attribute.value(rng, state.lexicon)
    text = fill(typed(rng, attribute.tells.pick(rng, state.lexicon.split), keep_case=True), "{v}", value)
    said = _store(state, attribute, value)
    state.attributes[attribute.key] = attribute
    return Turn(text, _acknowledge(attribute, value, said),
                f"They tell me that {said}. I will remember it.", "tell")


def tell_several(state: State) -> Turn:
    """Two to five facts in one message."""
    rng = state.rng
    turns = [tell(state) for _ in range(rng.randint(2, 5))]
    mark = rng.choice(("", "- ", "* "))
    opening = rng.choice(("Here are some facts:", "Please remember:", "Some things about me:",
        "Remember these facts:",
                          "Notes:"))
    lines = [mark + turn.user.rstrip() for turn in turns]
    text = "\n".join([opening, *lines]) if mark else " ".join(line if line[-1] in ".!?" else line + "."
        for line in lines)
    return Turn(text, "Thank you, I will remember that.",
        f"They tell me {len(turns)} facts. I will remember them.", "tell")


def tell_two(state: State) -> Turn:
    """Hi! I am Anna and I live in Oslo."""
    rng = state.rng
    first, second = tell(state).user.rstrip("?.! "), tell(state).user.rstrip("?.! ")
    if not second.startswith("I"):
        second = second[0].lower() + second[1:]
    hello = rng.choice(("Hi! ", "Hello! ", "Hi, ", "Hello, ", "Hey, ", "", "", "", ""))
    return Turn(f"{hello}{first} and {second}" + rng.choice((".", "", "!")),
        "Thank you, I will remember that.",
                "They tell me 2 facts. I will remember them.", "tell")


def tell_ask(state: State) -> Turn:
    """Told and asked in one message."""
    rng = state.rng
    before = set(state.attributes)
    told = [tell(state).user for _ in range(rng.choice((1, 1, 2, 3)))]
    question = ask(state, rng.choice([key for key in state.attributes if key not in before]))
    assert question is not None
    lines = " ".join(line if line[-1] in ".!?" else line + "." for line in told)
    return Turn(f"{lines}{rng.choice((' ', chr(10)))}{question.user}", question.answer, question.thought,
        "recall")


def tell_in_text(state: State) -> Turn:
    """A fact in the middle of a text that says nothing else of use."""
    rng = state.rng
    turn = tell(state)
    fact = turn.user if turn.user[-1] in ".!?" else turn.user + "."
    before, after = (paragraph(rng, state, rng.randint(1, 9)) for _ in range(2))
    text = f"{before} {capital(fact)} {after}"
    return Turn(text, "I have read it.", "They show me a text. There is no question in it.", "tell")


def correct(state: State) -> Turn | None:
    rng = state.rng
    attributes = state.attributes
    if not attributes:
        return None
    attribute = attributes[rng.choice(list(attributes))]
    old = state.facts[attribute.key].values[-1]
    value = attribute.value(rng, state.lexicon)
    if value in state.facts[attribute.key].values:
        return None
    told = attribute.tells.pick(rng, state.lexicon.split)
    told = CORRECT.pick(rng, state.lexicon.split).replace("{t}", told)
    if state.lexicon.split == "train" and rng.random() < 0.35:
        mine = attribute.noun.replace("your ", "my ", 1)
        changes = () if attribute.noun.startswith("where ") else CHANGES
        told = rng.choice(MOVES if attribute.key == "city" else changes or (told,)).replace("{n}", mine)
    text = typed(rng, told, keep_case=True)
    text = fill(text, "{v}", value).replace("{o}", old)
    said = _store(state, attribute, value)
    return Turn(text, f"Thanks for the correction, {said}.",
                f"They correct a fact. Before: {old}. Now {said}.", "correct")


def _thought(noun: str, fact: Fact | None) -> str:
    if fact is None:
        return f"They ask for {noun}. I find no such fact."
    if len(fact.values) == 1:
        return f"They ask for {noun}. I was told: {fact.values[0]}."
    told = ", then ".join(fact.values)
    return f"They ask for {noun}. First {told}. The last one counts: {fact.values[-1]}."


def ask(state: State, key: str | None = None) -> Turn | None:
    """Asks for something that was told."""
    rng = state.rng
    attributes = state.attributes
    if not attributes:
        return None
    attribute = attributes[key or rng.choice(list(attributes))]
    fact = state.facts[attribute.key]
    said = fill(fact.sentence, "{v}", fact.values[-1])
    if rng.random() < 0.07:
        guess = fact.values[-1] if rng.random() < 0.5 else attribute.value(rng, state.lexicon)
        right = guess == fact.values[-1]
        text = rng.choice(("is it true that {s}?", "{s}, right?", "is it right that {s}?"))
        mine = fill(fact.sentence, "{v}", guess).replace("your ", "my ").replace("you are",
            "I am").replace("you ", "I ")
        return Turn(typed(rng, text.replace("{s}", mine), keep_case=True),
            f"{'Yes' if right else 'No'}, {said}.",
                    _thought(attribute.noun, fact), "recall")
    text = _question(rng, state, attribute)
    return Turn(typed(rng, text), capital(said) + ".", _thought(attribute.noun, fact), "recall")


def ask_two(state: State) -> Turn | None:
    rng = state.rng
    attributes = state.attributes
    if len(attributes) < 2:
        return None
    chosen = [attributes[key] for key in rng.sample(list(attributes), 2)]
    asked = [a.asks.pick(rng, state.lexicon.split).rstrip("?") for a in chosen]
    facts = [state.facts[a.key] for a in chosen]
    said = [fill(fact.sentence, "{v}", fact.values[-1]) for fact in facts]
    return Turn(typed(rng, f"{asked[0]} and {asked[1]}?"), capital(joined(said)) + ".",
                " ".join(_thought(a.noun, f) for a, f in zip(chosen, facts, strict=True)), "recall")


def ask_untold(state: State) -> Turn:
    """Asks for something never told; often a near neighbour of something that was."""
    rng = state.rng
    attribute = draw_attribute(rng, state.lexicon)
    while attribute.key in state.facts:
        attribute = draw_attribute(rng, state.lexicon)
    return Turn(typed(rng, _question(rng, state, attribute)),
        f"You have not told me {attribute.noun}.",
                _thought(attribute.noun, None), "untold")


def ask_all(state: State) -> Turn | None:
    rng = state.rng
    facts = list(state.facts.values())
    if len(facts) > 4:
        return None
    text = rng.choice(("what do you know about me?", "what have I told you?", "what did I tell you so far?",
                       "tell me everything I told you", "what do you remember?"))
    if not facts:
        return Turn(typed(rng, text), "You have not told me anything yet.",
            "I look for facts. There are none.", "untold")
    said = joined([fill(fact.sentence, "{v}", fact.values[-1]) for fact in facts])
    return Turn(typed(rng, text), capital(said) + ".", f"I was told {len(facts)} facts.", "recall")


def into_system(state: State) -> str:
    """Facts for the system prompt, known from then on."""
    rng = state.rng
    lines = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 6))):
        attribute = draw_attribute(rng, state.lexicon)
        if attribute.key in state.facts:
            continue
        value = attribute.value(rng, state.lexicon)
        _store(state, attribute, value)
        state.attributes[attribute.key] = attribute
        lines.append(capital(fill(attribute.third, "{v}", value)) + ".")
    return (" " if rng.random() < 0.6 else "\n").join(lines)
