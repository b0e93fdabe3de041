"""Skill 6: a JSON object that fits a given schema, filled from what the text says.

The documented form of the instruction, in the system prompt or at the head or end of the user message:

    Answer with a JSON object that fits this schema:
    {"type": "object", "properties": {...}, "required": [...]}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from conversation import State, Turn
from lexicon import Lexicon, Split
from phrasing import Phrases, composed, fill
from toolbox import sentence

INSTRUCTION = "Answer with a JSON object that fits this schema:"
HELD_INSTRUCTIONS = (INSTRUCTION, INSTRUCTION, "Give me JSON that follows this schema:")
# "Reply with one JSON object according to the schema below:", in parts.
ANSWER = ("Answer with ", "Reply with ", "Respond with ", "Return ", "Output ", "Write ", "Produce ",
    "Give me ", "Send ", "Print ",
    "Reply only with ", "Only output ", "Answer only with ", "Make ", "I want ", "Your answer is ",
    "Your answer must be ",
    "Always answer with ", "Please answer with ", "Fill in ", "Build ", "Create ", "The answer is ",
    "I need ", "You write ")
OBJECT = ("a JSON object", "a JSON object", "JSON", "JSON", "one JSON object", "just JSON", "valid JSON",
    "a single JSON object", "a flat JSON object", "pure JSON", "an object in JSON", "data as JSON")
FITTING = (" that fits", " that matches", " for", " with", " according to", " in the form of",
    " as described by", " of",
    " which fits", " that obeys", " by", " valid under", " fitting", " matching", " following",
    " that conforms to", " based on")
SCHEMA = (" this schema:", " this schema:", " the following schema:", " this JSON schema:",
    " the schema below:", " the schema:",
    " the schema here:", " such a schema:", " this schema.", " my schema:", " the JSON schema:")
OTHER_INSTRUCTIONS = ("Use this JSON schema for your answer:", "Your answer must follow this JSON schema:",
    "Follow this schema and answer in JSON:", "Schema:", "JSON schema:", "The schema of your answer:",
    "Answer in JSON. The schema:",
    "The answer has this schema:", "response_format:", "Stick to this schema:", "Format of the answer:")
HELD_KEYS_ONLY = ("Put {k} into a JSON object.",)
PACK = ("Give me ", "Return ", "Write ", "Extract ", "Get ", "Pick out ", "List ", "Output ", "Show ",
    "Collect ", "Store ",
    "Save ", "Pack ", "Wrap ", "Format ", "Place ", "Arrange ", "Send ", "Print ", "Answer with ",
    "Reply with ", "Note ", "Tell me ",
    "Find ", "Pull out ", "Turn ", "Gather ", "Copy ", "Fill ", "I need ", "I want ", "Please give ",
    "Please pack ", "Take ")
AS_JSON = (" as JSON.", " as JSON.", " as a JSON object.", " in JSON.", " in a JSON object.",
    " in JSON form.", " into JSON.",
    " into one JSON object.", " as one JSON object.", " as JSON, please.", " as keys of a JSON object.",
    " inside a JSON object.")
OTHER_KEYS_ONLY = ("Give me that as JSON with the keys {k}.", "Reply in JSON with the keys {k}.",
    "Answer as a JSON object with {k}.",
    "As JSON with {k}:", "Put this into JSON with {k}.", "Make a JSON object of {k}.",
    "A JSON object with {k}, please.",
    "JSON with {k}.", "The keys of the JSON object are {k}.", "Make JSON out of this: {k}.",
    "Turn it into JSON with {k}.")


def _instruction(rng: Random, split: Split) -> str:
    kind = rng.random()
    if split == "train" and kind < 0.45:
        return INSTRUCTION if kind < 0.3 else rng.choice(OTHER_INSTRUCTIONS)
    return composed(rng, split, HELD_INSTRUCTIONS, ANSWER, OBJECT, FITTING, SCHEMA)


def _keys_only(rng: Random, split: Split) -> str:
    if split == "train" and rng.random() < 0.3:
        return rng.choice(OTHER_KEYS_ONLY)
    return composed(rng, split, HELD_KEYS_ONLY, PACK, ("{k}", "{k}", "the {k}", "the keys {k}",
        "the values of {k}"), AS_JSON)


Draw = Callable[[Random, Lexicon], Any]

# (key names, schema of the value, sentence, value). A sentence may have a form for false.
FIELDS: tuple[tuple[tuple[str, ...], dict[str, Any], tuple[str, ...], Draw], ...] = (
    (("age", "years"), {"type": "integer"}, ("{s} is {v} years old", "{s} is {v}", "{s} is aged {v}"),
    lambda r, _: r.randint(3, 99)),
    (("city", "town", "home", "location"), {"type": "string"}, ("{s} lives in {v}", "{s} comes from {v}"),
    lambda r, x: x.city(r)),
    (("job", "profession", "occupation"), {"type": "string"}, ("{s} works as a {v}", "{s} is a {v}"),
    lambda r, x: r.choice(x.jobs)),
    (("company", "employer"), {"type": "string"}, ("{s} works at {v}", "{s} works for {v}"), lambda r,
    x: x.company(r)),
    (("colour", "color", "favourite_colour"), {"type": "string"}, ("{s} likes the colour {v}",
    "the favourite colour of {s} is {v}"), lambda r, x: r.choice(x.colours)),
    (("food", "favourite_food"), {"type": "string"}, ("{s} likes to eat {v}", "{s} loves {v}"), lambda r,
    x: r.choice(x.foods)),
    (("hobby", "sport"), {"type": "string"}, ("{s} enjoys {v}", "the hobby of {s} is {v}"), lambda r,
    x: r.choice(x.hobbies)),
    (("pet", "animal"), {"type": "string"}, ("{s} has a {v}", "{s} keeps a {v}"), lambda r,
    x: r.choice(x.animals)),
    (("children", "kids", "n_children"), {"type": "integer"}, ("{s} has {v} children",), lambda r,
    _: r.randint(2, 9)),
    (("code", "id", "number", "reference"), {"type": "string"}, ("the {n} is {v}", "{n}: {v}"), lambda r,
    x: x.code(r)),
    (("price", "cost", "amount"), {"type": "integer"}, ("the {n} is {v} euros", "it costs {v} euros"),
    lambda r, _: r.randint(2, 999)),
    (("score", "points", "rank", "level"), {"type": "integer"}, ("the {n} is {v}", "{s} has {n} {v}"),
    lambda r, _: r.randint(0, 999)),
    (("item", "product", "object"), {"type": "string"}, ("{s} wants a {v}", "{s} ordered a {v}"), lambda r,
    x: r.choice(x.things)),
    (("quantity", "count"), {"type": "integer"}, ("the {n} is {v}", "{v} pieces"), lambda r, _: r.randint(1,
    60)),
    (("title", "subject"), {"type": "string"}, ('the {n} is "{v}"',), lambda r, x: sentence(r, x)),
    (("member", "is_member", "vip"), {"type": "boolean"}, ("{s} is a {n}|{s} is not a {n}",),
    lambda r, _: r.random() < 0.5),
    (("active", "is_active", "verified", "online"), {"type": "boolean"}, ("{s} is {n}|{s} is not {n}",),
    lambda r, _: r.random() < 0.5),
    (("in_stock", "available", "open", "paid", "urgent", "new", "broken"), {"type": "boolean"},
    ("it is {n}|it is not {n}",), lambda r, _: r.random() < 0.5),
    (("married", "retired", "happy", "vegetarian"), {"type": "boolean"}, ("{s} is {n}|{s} is not {n}",),
    lambda r, _: r.random() < 0.5),
    (("size",), {"type": "string", "enum": ["small", "medium", "large"]}, ("the size is {v}", "in size {v}"),
    lambda r, _: ""),
    (("priority",), {"type": "string", "enum": ["low", "normal", "high"]}, ("with {v} priority",
    "the priority is {v}"), lambda r, _: ""),
    (("status", "state"), {"type": "string", "enum": ["open", "closed", "waiting"]}, ("the {n} is {v}",),
    lambda r, _: ""),
    (("season",), {"type": "string", "enum": ["spring", "summer", "autumn", "winter"]}, ("it happens in {v}",
    "the season is {v}"), lambda r, _: ""),
    (("sentiment", "mood"), {"type": "string", "enum": ["good", "bad", "neutral"]}, ("the {n} is {v}",),
    lambda r, _: ""),
    (("plan", "tier"), {"type": "string", "enum": ["free", "basic", "premium"]}, ("{s} has the {v} {n}",
    "the {n} is {v}"), lambda r, _: ""),
)
HELD_WRAPS = ("Read this and fill in the object: {t}", "Input: {t}")
LABELS = ("Text", "Data", "Note", "Record", "Entry", "Document", "Message", "Content", "Details",
    "Description", "Info", "Facts",
    "Source", "Passage", "Report", "Mail", "Customer", "Sentence", "Read", "The text", "Here is the text",
    "My text", "Case", "Item",
    "User", "Form", "Memo", "The record", "About", "This is it", "Today", "File", "Line", "Story", "Letter",
    "Query", "Task", "Words")
DO = ("Extract", "Convert", "Turn", "Parse", "Read", "Take", "Use", "Process", "Look at",
    "Fill the schema with", "Fill in",
    "Please convert", "Please read", "Please extract", "Transform", "Analyse", "Summarise", "Encode",
    "Translate", "Get")
WHAT = ("", " this", " the data", " the text", " this text", " the following", " the facts", " the object",
    " the values", " what you find here", " the sentence", " this into JSON", " the text and answer",
    " it and fill the schema", " it into the object", " the fields from this")
TEXT = (": {t}", ": {t}", ":\n{t}", ".\n{t}", ".\n\n{t}")


def _wrap(rng: Random, x: Lexicon) -> str:
    """What stands around the text: nothing, a label of any word, or an order before or behind it."""
    kind = rng.random()
    if x.split == "held":
        return rng.choice(HELD_WRAPS)
    if kind < 0.25:
        return "{t}"
    if kind < 0.6:
        label = rng.choice(LABELS) if kind < 0.45 else x.word(rng)
        label = label.capitalize() if rng.random() < 0.75 else label.upper() if rng.random() < 0.3 else label
        return f"{label}{rng.choice((': ', ': ', ': ', ' = ', ' - ', chr(10), ':' + chr(10)))}{{t}}"
    if kind < 0.9:
        return composed(rng, "train", HELD_WRAPS, DO, WHAT, TEXT)
    return "{t}" + rng.choice((" ", "\n", "\n\n")) + rng.choice(("Extract the data.", "Fill in the object.",
        "Now the JSON.",
        "JSON please.", "What is the object?", "Fill the schema.", "That is the text.", "Convert this.",
        "Answer in JSON."))


INVENT = Phrases(("Make up a {w}.", "Invent a {w}.", "Create a {w}.", "Give me a {w}.", "Describe a {w}."),
    ("Think of a {w}.",))


def _open_field(rng: Random, x: Lexicon) -> tuple[str, dict[str, Any], tuple[str, ...], Draw]:
    """A key that no list holds."""
    key = x.fresh(rng) if rng.random() < 0.6 else f"{rng.choice(x.adjectives)}_{rng.choice(x.things)}"
    kind = rng.choice(("string", "string", "integer", "boolean", "enum"))
    if kind == "enum":
        choices = [x.word(rng) for _ in range(rng.randint(2, 4))]
        return key, {"type": "string", "enum": choices}, ("the {n} is {v}",
            "{n}: {v}"), lambda r, _: r.choice(choices)
    if kind == "boolean":
        return key, {"type": "boolean"}, ("the {n} is {v}",
            "it is {n}|it is not {n}"), lambda r, _: r.random() < 0.5
    draw: Draw = (lambda r, x: x.word(r)) if kind == "string" else (lambda r, _: r.randint(0, 9999))
    return key, {"type": kind}, ("the {n} is {v}", "{n}: {v}", "the {n} of {s} is {v}"), draw


FRIENDS = ("my friend {s}", "our customer {s}", "my {r} {s}", "a man called {s}", "my boss {s}", "{s}",
    "{s}", "{s}",
    "I know {s}, who", "there is {s}, who", "yesterday I met {s}, who", "I have a friend, {s}, who",
    "our new colleague {s}",
    "the user {s}", "this is {s}, who", "your neighbour {s}", "a woman named {s}", "you know that {s}",
    "I can tell you that {s}", "here comes {s}, who", "the guest {s}", "she told me that {s}",
    "my old friend {s}")
RELATIVES = "brother sister cousin uncle aunt teacher doctor son daughter wife husband".split()
# The same in parts: a sentence may open with any word, and the name comes later.
OPENS = ("let me", "let us", "allow me to", "I want to", "may I", "please", "I have to", "it is time to",
    "today we", "now", "we", "I", "you can", "we should", "I am happy to", "here we", "can you", "I will",
    "must we", "one word:", "lastly,", "first,", "look,", "listen, I", "Monday:", "hello, I", "yes, we",
    "so let us", "to you I")
PRESENTS = ("present", "introduce", "greet", "welcome", "meet", "name", "show you", "tell you about",
    "mention", "describe", "talk about", "speak of", "praise", "recommend", "honour", "announce",
    "bring you", "think of", "list", "write about", "bring in", "point to", "call in", "hand over to",
    "say hello to", "thank", "note")
CERTAIN = (" {s}, who", " {s}, who", " {s}, who", " my {r} {s}, who", ": {s}, who", " our {r} {s}, who",
    " a certain {s}, who", " one {s}, who", " the {r} {s}, who", " someone called {s}, who")
FRIENDS_HELD = ("my dear friend {s}", "let me introduce {s}, who")


def _opening(rng: Random, x: Lexicon) -> str:
    """What comes before the name, and the name; in training of any words, never what is held."""
    if x.split == "held":
        return rng.choice(FRIENDS_HELD)
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(FRIENDS)
    if kind < 0.5:
        return f"{rng.choice(('my', 'our', 'her', 'your', 'the'))} {rng.choice(x.adjectives)} {{r}} {{s}}"
    if kind < 0.62:
        return f"{' '.join(x.word(rng) for _ in range(rng.randint(1, 4)))} {{s}}, who"
    while True:
        text = f"{rng.choice(OPENS)} {rng.choice(PRESENTS)}{rng.choice(CERTAIN)}"
        if not text.startswith("let me introduce"):
            return text


def _in_one(rng: Random, x: Lexicon, told: list[str], subject: str) -> str:
    """"My friend Peter Smith is 44 and lives in Rome", then what is not said of the subject."""
    opening = _opening(rng, x).replace("{r}", rng.choice(RELATIVES)).replace("{s}", subject)
    about = [line.removeprefix("{s} ") for line in told if line.startswith("{s} ")]
    rest = [line.replace("{s}", subject) for line in told if not line.startswith("{s} ")]
    if not about:
        about = [rng.choice(("is here", "called", "wrote to us", "is new", "came today"))]
    text = f"{opening} {', '.join(about[:-1])}{' and ' if len(about) > 1 else ''}{about[-1]}"
    return ". ".join([text, *(line[0].upper() + line[1:] for line in rest)])


def extract(state: State, in_system: bool = False) -> tuple[Turn, str]:
    """The turn, and the instruction if it is to stand in the system prompt."""
    rng, x = state.rng, state.lexicon
    subject = f"{x.name(rng).split()[0]} {x.fresh(rng).capitalize()}" if rng.random() < 0.2 else x.name(rng)
    if x.split == "train" and x.pieces and rng.random() < 0.35:  # names of every length and spelling
        subject = " ".join(x.pieced(rng).capitalize() for _ in range(rng.choice((1, 1, 2))))
    values: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    told: list[str] = []
    free = list(FIELDS)  # each kind of field once: of two ages nobody could tell which key wants which
    if rng.random() < 0.75:
        key = rng.choice(("name", "name", "person", "customer", "user", "first_name"))
        subject = subject.split()[0] if key == "first_name" else subject
        values[key], properties[key] = subject, {"type": "string"}
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
        if rng.random() < 0.3:
            key, schema, forms, draw = _open_field(rng, x)
        else:
            keys, schema, forms, draw = free.pop(rng.randrange(len(free)))
            key = rng.choice(keys)
        if key in values:
            continue
        value = rng.choice(schema["enum"]) if "enum" in schema else draw(rng, x)
        form = rng.choice(forms)
        if "|" in form:
            form = form.split("|")[0 if value else 1]
        shown = ("true" if value else "false") if isinstance(value, bool) else str(value)
        said = key.removeprefix("is_").removeprefix("n_").replace("_", " ")
        told.append(fill(fill(form, "{n}", said), "{v}", shown))
        values[key], properties[key] = value, schema
    joined_up = rng.random() < (0.3 if x.split == "held" else 0.5)
    if joined_up:
        told = [_in_one(rng, x, told, subject)]
    pronoun = rng.choice(("he", "she"))
    told = [line.replace("{s}", subject if i == 0 or rng.random() < 0.4 or not line.startswith("{s}")
        else pronoun) if "{s}" in line else line
            for i, line in enumerate(told)]
    if not joined_up and not any(subject in line for line in told):
        told.insert(0, f"this is about {subject}")
    if rng.random() < 0.2:
        told.append(f"the weather is {rng.choice(x.adjectives)}")
    if rng.random() < 0.3:
        head, rest = told[0], told[1:]
        rng.shuffle(rest)
        told = [head, *rest]
    text = ". ".join(line[0].upper() + line[1:]
        for line in told) + "." if rng.random() < 0.7 else (", ".join(told[:-1]) + " and " + told[-1] + "."
            if len(told) > 1 else told[0] + ".")
    text = text[0].upper() + text[1:]
    if rng.random() < 0.4:
        order = list(values)
        rng.shuffle(order)
        values = {key: values[key] for key in order}
        properties = {key: properties[key] for key in order}
    answer = json.dumps(values, ensure_ascii=False)
    thought = "The keys: " + ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key,
        value in values.items()) + "."
    if not in_system and rng.random() < 0.2:
        keys = list(values)
        listed = f"{', '.join(keys[:-1])} and {keys[-1]}" if len(keys) > 1 else keys[0]
        wish = _keys_only(rng, x.split).replace("{k}", listed)
        if wish.endswith(":") or (x.split == "train" and rng.random() < 0.25):
            return Turn(f"{wish}{rng.choice((' ', chr(10)))}{text}", answer, thought, "json"), ""
        return Turn(f"{text} {wish}", answer, thought, "json"), ""
    schema = {"type": "object", "properties": properties, "required": list(values)}
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    if rng.random() < 0.15:
        schema = {"title": x.made_up(rng).capitalize(), **schema}
    shown_schema = json.dumps(schema, ensure_ascii=False, indent=2 if rng.random() < 0.08 else None)
    instruction = f"{_instruction(rng, x.split)}\n{shown_schema}"
    text = _wrap(rng, x).replace("{t}", text)
    if in_system:
        return Turn(text, answer, thought, "json"), instruction
    return Turn(f"{instruction}\n\n{text}" if rng.random() < 0.5 else f"{text}\n\n{instruction}", answer,
        thought, "json"), ""


def invent(state: State) -> tuple[Turn, str]:
    """Nothing to extract: values of one's own that fit the schema in the system prompt."""
    rng = state.rng
    turn, instruction = extract(state, in_system=True)
    text = INVENT.pick(rng, state.lexicon.split).replace("{w}",
        rng.choice(("person", "customer", "product", "user", "place", "pet")))
    return Turn(text, turn.answer, turn.thought, "invent"), instruction
