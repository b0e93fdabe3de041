"""Tools made up on the spot: names, parameters, descriptions, requests that want them and results they
give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from conversation import Call, State
from lexicon import HELD_DO_VERBS, HELD_NOUNS, HELD_READ_VERBS, Lexicon
from phrasing import a_or_an, polite, typed

READ_VERBS = "get fetch find look_up read check show retrieve query load".split()
DO_VERBS = """
    create add send delete update book cancel start stop open close move order schedule print play save
    set remove make register submit archive share copy rename reserve buy clean repair build pause
""".split()
NOUNS = """
    weather forecast price order invoice user account balance ticket file note message email event
    meeting flight hotel room car song playlist light door alarm timer reminder report task project
    stock package route recipe movie book contact photo document page device sensor temperature score
    rate distance address profile status schedule calendar payment discount coupon cart table seat
    review rating article image video player team match server job backup log branch commit issue
    comment label folder record product customer employee salary holiday shift train bus taxi parcel
    delivery machine pump valve engine battery oven window garden plant animal pet patient appointment
    prescription course lesson exam grade student teacher loan card limit policy claim contract quote
    lead campaign survey answer
""".split()
FLAGS = "urgent private express recursive verbose silent public final hidden gift".split()
OPENINGS = ("please", "let us", "I'd like to", "it is time to", "you should", "I have to", "we must",
    "help me to",
    "your task: ", "first of all,", "one more thing:", "let's", "we need to", "you have to", "try to",
    "be so good and",
    "do me a favour and", "my wish is to", "the plan is to")
RELATIVE = """
    name city colour price owner amount size weight code status total address month age level
""".split()


@dataclass(frozen=True)
class Param:
    name: str
    type: str
    description: str
    choices: tuple[str, ...]
    required: bool
    phrases: tuple[str, ...]  # how a request says it, {v} is the value
    draw: Callable[[Random, Lexicon], Any]


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    params: tuple[Param, ...]
    asks: tuple[str, ...]  # {p:NAME} stands for a parameter's phrase, {v:NAME} for its bare value
    noun: str
    reads: bool
    order: str = ""  # the verb as a request says it

    def spec(self, rng: Random) -> dict[str, Any]:
        """The tool as a client sends it; clients differ in what they add and in which order."""
        properties: dict[str, Any] = {}
        for param in self.params:
            body: dict[str, Any] = {"type": param.type}
            if param.type == "array":
                body["items"] = {"type": "string"}
            if param.choices:
                body["enum"] = list(param.choices)
            if param.description:
                body["description"] = param.description
            properties[param.name] = body
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        required = [param.name for param in self.params if param.required]
        if required or rng.random() < 0.5:
            parameters["required"] = required
        if rng.random() < 0.15:
            parameters["additionalProperties"] = False
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = parameters
        if rng.random() < 0.06:
            function["strict"] = True
        return {"type": "function", "function": function}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _styled(rng: Random, *words: str) -> str:
    """get_weather, getWeather, GetWeather, get-weather, weather.get"""
    parts = [part for word in words for part in word.split("_")]
    kind = rng.random()
    if kind < 0.5:
        return "_".join(parts)
    if kind < 0.72:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if kind < 0.82:
        return "".join(part.capitalize() for part in parts)
    if kind < 0.9:
        return "-".join(parts)
    return "".join(parts)


def _date(rng: Random) -> str:
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow".split()
    if rng.random() < 0.5:
        return rng.choice(days)
    return f"202{rng.randint(5, 9)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def sentence(rng: Random, x: Lexicon) -> str:
    """A few words to be passed on unchanged; some come twice or thrice, which is where a copy jumps."""
    things = rng.sample(x.things, 3) if rng.random() < 0.3 else x.things
    text = " ".join(x.word(rng) if rng.random() < 0.4
        else rng.choice((*things, "the", "at", "and", "to", "now"))
                    for _ in range(rng.randint(2, 7)))
    if x.split == "train" and rng.random() < 0.2:
        words = text.split()
        i = rng.randrange(len(words))
        words.insert(i if rng.random() < 0.6 else rng.randint(i, len(words)), words[i])
        text = " ".join(words)
    return text[0].upper() + text[1:] if rng.random() < 0.6 else text


KINDS: tuple[tuple[tuple[str, ...], str, tuple[tuple[str, ...], ...], tuple[str, ...],
    Callable[[Random, Lexicon], Any]], ...] = (
    (("city", "location", "place", "town", "destination"), "string", (), ("in {v}", "for {v}"), lambda r,
    x: x.city(r)),
    (("city", "location"), "string", (), ("in {v}", "for {v}", "of {v}"), lambda r, x: x.city(r)),
    (("name", "person", "user", "customer", "owner", "recipient", "username"), "string", (), ("for {v}",
    "of {v}"),
     lambda r, x: x.name(r)),
    (("id", "code", "reference", "key", "order_id", "user_id", "item_id", "number"), "string", (), ("{v}",
    "with id {v}", "number {v}"),
     lambda r, x: x.code(r)),
    (("date", "day", "start_date", "when"), "string", (), ("on {v}", "for {v}"), lambda r, _: _date(r)),
    (("time", "start", "hour", "start_time"), "string", (), ("at {v}",), lambda r,
    _: f"{r.randint(0, 23):02}:{r.choice((0, 15, 30, 45)):02}"),
    (("count", "limit", "quantity", "days", "minutes", "max_results", "guests", "seats", "page"), "integer",
    (), ("with {n} {v}",),
     lambda r, _: r.randint(1, 60)),
    (("id", "order_number", "ticket_id", "index"), "integer", (), ("number {v}", "{v}", "with id {v}"),
    lambda r, _: r.randint(1, 99999)),
    (("amount", "price", "max_price", "weight", "budget", "value"), "number", (), ("with {n} {v}", "of {v}"),
     lambda r, _: r.choice((r.randint(1, 500), r.randint(10, 9999) / 10, r.randint(1, 99) + 0.5))),
    (("unit", "units"), "string", (("celsius", "fahrenheit"), ("km", "miles"), ("kg", "pounds"),
    ("euro", "dollar"), ("metric", "imperial")),
     ("in {v}",), lambda r, _: ""),
    (("priority", "level", "importance"), "string", (("low", "medium", "high"),
    ("low", "normal", "high", "critical")),
     ("with {v} {n}", "with {n} {v}"), lambda r, _: ""),
    (("size",), "string", (("small", "medium", "large"), ("s", "m", "l", "xl")), ("in size {v}",
    "with size {v}"), lambda r, _: ""),
    (("mode", "state", "format", "kind", "type", "category"), "string",
     (("on", "off"), ("fast", "slow"), ("json", "text", "csv"), ("daily", "weekly", "monthly"), ("open",
     "closed")),
     ("with {n} {v}", "in {v} {n}", "as {v}"), lambda r, _: ""),
    (("color", "colour"), "string", (), ("in {v}", "with {n} {v}"), lambda r, x: r.choice(x.colours)),
    (("text", "message", "content", "body", "note", "comment"), "string", (), ('saying "{v}"',
    'with the {n} "{v}"', "with the {n} '{v}'"),
     lambda r, x: sentence(r, x)),
    (("title", "subject", "label"), "string", (), ('called "{v}"', 'with the {n} "{v}"', 'titled "{v}"'),
    lambda r, x: sentence(r, x)),
    (("query", "q", "keyword", "topic", "term", "search"), "string", (), ("about {v}", "for {v}"), lambda r,
    x: x.word(r)),
    (("path", "file", "filename", "file_path"), "string", (), ("in {v}", "from {v}", "{v}"),
     lambda r, x: f"{x.word(r)}/{x.word(r)}.{r.choice(('txt', 'md', 'py', 'json', 'log'))}"
     if r.random() < 0.5
     else f"{x.word(r)}.{r.choice(('txt', 'md', 'py', 'json', 'log'))}"),
    (("item", "product", "object", "device"), "string", (), ("for the {v}", "for {v}", "with {n} {v}"),
    lambda r, x: r.choice(x.things)),
    (("email", "to", "address"), "string", (), ("to {v}",), lambda r,
    x: f"{x.name(r).lower()}@{x.made_up(r, 2)}.{r.choice(('com', 'org', 'net'))}"),
    (("language", "target_language", "lang"), "string", (), ("in {v}", "with {n} {v}"),
     lambda r, _: r.choice(("German", "French", "Spanish", "Italian", "Dutch", "Polish", "Latin", "Greek"))),
    (("tags", "names", "items", "labels"), "array", (), ("with {n} {v}",), lambda r,
    x: [x.word(r) for _ in range(r.randint(1, 3))]),
)


def _mostly_true(rng: Random, _: Lexicon) -> bool:
    return rng.random() < 0.6


@dataclass(frozen=True)
class Pool:
    """The few words that the tools of one conversation are named with: tools that are easily confused."""

    read_verbs: tuple[str, ...]
    do_verbs: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    params: tuple[str, ...]


def draw_pool(rng: Random, x: Lexicon) -> Pool:
    def invented() -> str:
        return x.made_up(rng, rng.choice((1, 2, 2))) if rng.random() < 0.5 else x.pieced(rng)

    def verbs(listed: list[str]) -> tuple[str, ...]:
        return tuple(rng.choice(listed) if rng.random() < 0.6 else rng.choice(x.plain)
            if rng.random() < 0.3 else invented() for _ in range(rng.randint(1, 3)))

    listed = 0.75 if rng.random() < 0.5 else 0.3
    params = (f"{invented()}_{rng.choice(x.things)}" if rng.random() < 0.4 else invented() for _ in range(3))
    return Pool(verbs(READ_VERBS), verbs(DO_VERBS),
        tuple(rng.choice(x.adjectives) if rng.random() < 0.7 else invented()
            for _ in range(rng.randint(1, 3))),
        tuple(rng.choice(NOUNS) if rng.random() < listed else invented() for _ in range(rng.randint(3, 6))),
        tuple(params))


def _draw_param(rng: Random, x: Lexicon, taken: set[str], pool: Pool | None) -> Param:
    while True:
        roll = rng.random()
        if roll < 0.1:
            name, type_, choices, phrases = rng.choice(FLAGS), "boolean", (), ("make it {n}",
                "set {n} to {v}", "with {n} {v}")
            draw: Callable[[Random, Lexicon], Any] = _mostly_true
        elif roll < 0.27:
            name = (rng.choice(pool.params) if pool else x.fresh(rng) if rng.random() < 0.6
                else f"{x.fresh(rng)}_{rng.choice(x.things)}")
            type_, choices, phrases = rng.choice(("string", "string", "integer",
                "boolean")), (), ("with {n} {v}", "and {n} {v}")
            draw = ((lambda r, x: x.word(r)) if type_ == "string" else (lambda r, _: r.randint(0, 999))
                if type_ == "integer"
                    else (lambda r, _: r.random() < 0.5))
        else:
            names, type_, options, phrases, draw = rng.choice(KINDS)
            name = rng.choice(names)
            choices = rng.choice(options) if options else ()
        if name not in taken:
            break
    taken.add(name)
    said = _words(name)
    if rng.random() < 0.35:
        phrases = rng.choice((("with {n} {v}",), ("{n} {v}",), ("and {n} = {v}",), ("where {n} is {v}",),
            ("with {n} set to {v}",), ("({n}: {v})",)))
    description = "" if rng.random() < 0.35 else rng.choice((f"The {said}", f"the {said} to use",
        f"{said.capitalize()} of the request",
                                                           f"Which {said}", f"{said}",
                                                           f"The {said}, as a {type_}"))
    return Param(name, type_, description, choices,
        rng.random() < (0.7 if x.split == "held" else 0.6),
        tuple(p.replace("{n}", said) for p in phrases),
                 draw if not choices else (lambda r, _: r.choice(choices)))


def _sibling(rng: Random, param: Param, taken: set[str]) -> Param | None:
    """An optional parameter that could hold the same value under another name, and that a wish names: a value
    goes into one of the two, not into both."""
    for names, _, options, _, _ in KINDS:
        others = [name for name in names if name not in taken]
        if param.name in names and others and not options:
            name = rng.choice(others)
            taken.add(name)
            description = rng.choice(("", f"The {_words(name)}", f"Which {_words(name)}"))
            phrases = ("with {n} {v}", "{n} {v}", "with {n} set to {v}", "and {n} = {v}", "where {n} is {v}")
            return replace(param, name=name, description=description, required=False,
                phrases=tuple(phrase.replace("{n}", _words(name)) for phrase in phrases))
    return None


def make_tool(state: State, like: Tool | None = None, pool: Pool | None = None) -> Tool:
    """A tool; with `like`, one that is easily taken for it (same noun); with `pool`, of its words."""
    rng, x = state.rng, state.lexicon
    held = x.split == "held"
    if rng.random() < (0.08 if pool else 0.22) and like is None:
        return rng.choice(CLASSICS)
    reads = rng.random() < 0.5
    verb = rng.choice((HELD_READ_VERBS if held else READ_VERBS) if reads else (HELD_DO_VERBS if held
        else DO_VERBS))
    if not held and rng.random() < 0.35:
        verb = rng.choice(x.plain) if rng.random() < 0.25 else x.made_up(rng, rng.choice((1,
            2))) if rng.random() < 0.5 else x.pieced(rng)
    listed = rng.random() < (0.65 if held else 0.5)
    noun = rng.choice(HELD_NOUNS if held else NOUNS) if listed else x.made_up(rng,
        2) if rng.random() < 0.5 else x.pieced(rng)
    if pool:
        verb, noun = rng.choice(pool.read_verbs if reads else pool.do_verbs), rng.choice(pool.nouns)
    if pool and rng.random() < 0.5:
        noun = f"{rng.choice(pool.adjectives)}_{noun}"
    elif not pool and rng.random() < 0.3:
        noun = f"{rng.choice(x.colours if rng.random() < 0.2 else x.adjectives)}_{noun}"
    if like is not None and like.noun and rng.random() < 0.7:
        *before, last = like.noun.split()
        kind = rng.random()
        if kind < 0.4:
            noun = "_".join((*before, last))
        elif kind < 0.7 or not before:
            noun = f"{rng.choice(x.adjectives)}_{last}"
        else:
            noun = f"{before[0]}_{noun.split('_')[-1]}"
    said = _words(noun)
    taken: set[str] = set()
    params = [_draw_param(rng, x, taken, pool) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    if not held and params and params[0].required and rng.random() < 0.15:
        sibling = _sibling(rng, params[0], taken)
        if sibling:
            params.insert(rng.randrange(len(params) + 1), sibling)
    order = _words(verb)
    described = rng.random()
    name = _styled(rng, verb, noun) if rng.random() < 0.85 else x.made_up(rng) + rng.choice(("", "_tool",
        f"_{rng.randint(1, 9)}"))
    clear = name.lower().replace("_", "").replace("-", "") == (verb + noun).replace("_", "")
    with_params = f" by {_words(params[0].name)}" if params and rng.random() < 0.4 else ""
    description = "" if clear and described < 0.15 else (
        f"{order.capitalize()} the {said}{with_params}." if described < 0.5
        else f"{order.capitalize()} {a_or_an(said)}{with_params}"
        if described < 0.7 else f"Use this to {order} the {said}." if described < 0.85 else f"{order} {said}")
    required = "".join(" {p:%s}" % p.name for p in params if p.required)
    asks = [f"{order} the {said}{required}", f"{order} the {said}{required}",
        f"I want to {order} the {said}{required}",
            f"I need to {order} the {said}{required}", f"use {name} to {order} the {said}{required}",
            f"{order} {said}{required}"]
    if not held:
        opening = rng.choice(OPENINGS).strip()
        asks += [f"{opening} {order} the {said}{required}", f"{opening} {order} {said}{required}"]
    if reads:
        asks += [f"what is the {said}{required}?", f"what's the {said}{required}?",
            f"tell me the {said}{required}", f"I need the {said}{required}",
                 f"show me the {said}{required}", f"give me the {said}{required}",
                 f"do you know the {said}{required}?"]
    else:
        asks += [f"{order} {a_or_an(said)}{required}", f"{order} my {said}{required}",
            f"{order} this {said}{required}"]
    return Tool(name, description, tuple(params), tuple(asks), said, reads, order)


def _param(name: str, type_: str, description: str, draw: Callable[[Random, Lexicon], Any],
    phrases: tuple[str, ...] = (),
           required: bool = True, choices: tuple[str, ...] = ()) -> Param:
    return Param(name, type_, description, choices, required, phrases or (f"with {_words(name)} {{v}}",),
        draw)


def _int(low: int, high: int) -> Callable[[Random, Lexicon], int]:
    return lambda r, _: r.randint(low, high)


# What people try first with a server like this one.
CLASSICS: tuple[Tool, ...] = (
    *(Tool(name, "Get the current weather for a city.", (
        _param(place, "string", "The city, e.g. Rome", lambda r, x: x.city(r)),
        _param("unit", "string", "", lambda r, _: r.choice(("celsius", "fahrenheit")), ("in {v}",), False,
        ("celsius", "fahrenheit"))),
        ("what is the weather in {v:%s}?" % place, "what's the weather like in {v:%s}?" % place,
        "how is the weather in {v:%s}?" % place,
         "weather in {v:%s}" % place, "is it cold in {v:%s}?" % place, "how warm is it in {v:%s}?" % place,
         "does it rain in {v:%s}?" % place,
         "tell me the weather for {v:%s}" % place), "weather", True)
      for name in ("get_weather", "get_current_weather", "weather", "getWeather") for place in ("city",
          "location")),
    *(Tool(name, "Add two numbers.", (_param("a", "number", "", _int(1, 999)),
    _param("b", "number", "", _int(1, 999))),
           ("what is {v:a} + {v:b}?", "add {v:a} and {v:b}", "what is {v:a} plus {v:b}?",
           "use the tool to add {v:a} and {v:b}",
            "{v:a} + {v:b}"), "sum", True) for name in ("add", "add_numbers", "sum")),
    Tool("multiply", "Multiply two numbers.", (_param("a", "number", "", _int(2, 99)),
    _param("b", "number", "", _int(2, 99))),
         ("what is {v:a} * {v:b}?", "multiply {v:a} by {v:b}", "what is {v:a} times {v:b}?"), "product",
         True),
    Tool("calculator", "Evaluate an arithmetic expression.",
    (_param("expression", "string", "The expression to evaluate",
         lambda r, _: f"{r.randint(2, 99)} {r.choice('+-*/')} {r.randint(2, 99)}"),),
         ("what is {v:expression}?", "calculate {v:expression}", "compute {v:expression}", "{v:expression}"),
         "result", True),
    Tool("search", "Search the web.",
    (_param("query", "string", "What to search for", lambda r,
    x: " ".join(x.word(r) for _ in range(r.randint(1, 3)))),),
         ("search for {v:query}", "search the web for {v:query}", "look up {v:query}",
         "find pages about {v:query}"), "pages", True),
    Tool("get_time", "Get the current time in a time zone or city.",
    (_param("city", "string", "", lambda r, x: x.city(r)),),
         ("what time is it in {v:city}?", "tell me the time in {v:city}", "what is the time in {v:city}?"),
         "time", True),
    Tool("send_email", "Send an email.",
    (_param("to", "string", "The address", lambda r, x: f"{x.name(r).lower()}@{x.made_up(r, 2)}.com"),
         _param("subject", "string", "", lambda r, x: sentence(r, x)), _param("body", "string", "", lambda r,
         x: sentence(r, x))),
         ('send an email to {v:to} with the subject "{v:subject}" and the body "{v:body}"',
          'email {v:to} with subject "{v:subject}" saying "{v:body}"'), "email", False),
    *(Tool(name, "Read a file and return its text.",
    (_param("path", "string", "", lambda r, x: f"{x.word(r)}.{r.choice(('txt', 'md', 'py'))}"),),
           ("read {v:path}", "what is in {v:path}?", "open the file {v:path}", "show me {v:path}",
           "read the file {v:path}"), "text", True)
      for name in ("read_file", "readFile", "read")),
    Tool("write_file", "Write text to a file.",
    (_param("path", "string", "", lambda r, x: f"{x.word(r)}.txt"),
         _param("content", "string", "", lambda r, x: sentence(r, x))),
         ('write "{v:content}" to {v:path}', 'create the file {v:path} with the content "{v:content}"',
         'save "{v:content}" in {v:path}'), "file", False),
    Tool("list_files", "List the files of a folder.", (_param("folder", "string", "", lambda r, x: x.word(r)),
    ),
         ("list the files in {v:folder}", "which files are in {v:folder}?", "show the files of {v:folder}"),
         "files", True),
    Tool("run_command", "Run a shell command.",
    (_param("command", "string", "", lambda r, x: r.choice(("ls", "pwd", "git status", "make", "cat", "echo"))
         + (f" {x.word(r)}" if r.random() < 0.6 else "")),), ("run {v:command}",
             "run the command {v:command}", "execute {v:command}"), "output", True),
    Tool("translate", "Translate text.", (_param("text", "string", "", lambda r, x: sentence(r, x)),
         _param("language", "string", "", lambda r, _: r.choice(("German", "French", "Spanish", "Dutch")))),
         ('translate "{v:text}" to {v:language}', 'translate "{v:text}" into {v:language}',
         'how do you say "{v:text}" in {v:language}?'), "translation", True),
    Tool("get_stock_price", "Get the price of a stock.",
    (_param("symbol", "string", "Ticker symbol", lambda r,
    _: "".join(r.choice("ABCDEFGKLMNPRST") for _ in range(r.randint(3, 4)))),),
         ("what is the stock price of {v:symbol}?", "how much is {v:symbol}?", "get the price of {v:symbol}",
         "how is {v:symbol} doing?"), "price", True),
    Tool("book_flight", "Book a flight.", (_param("origin", "string", "", lambda r, x: x.city(r)),
    _param("destination", "string", "", lambda r, x: x.city(r)),
         _param("date", "string", "", lambda r, _: _date(r), ("on {v}",), False)),
         ("book a flight from {v:origin} to {v:destination}",
         "I want to fly from {v:origin} to {v:destination}"), "flight", False),
    Tool("set_alarm", "Set an alarm.",
    (_param("time", "string", "", lambda r, _: f"{r.randint(0, 23):02}:{r.choice((0, 15, 30)):02}"),),
         ("set an alarm for {v:time}", "wake me at {v:time}", "alarm at {v:time}"), "alarm", False),
    Tool("convert_currency", "Convert an amount of money.", (_param("amount", "number", "", _int(1, 999)),
         _param("from_currency", "string", "", lambda r, _: r.choice(("EUR", "USD", "GBP", "JPY"))),
         _param("to_currency", "string", "", lambda r, _: r.choice(("CHF", "SEK", "CAD", "AUD")))),
         ("convert {v:amount} {v:from_currency} to {v:to_currency}",
         "how much is {v:amount} {v:from_currency} in {v:to_currency}?"), "amount", True),
    Tool("roll_dice", "Roll dice.", (_param("sides", "integer", "", _int(4, 20)),),
    ("roll a die with {v:sides} sides", "roll a d{v:sides}"), "roll", True),
    Tool("get_user", "Get a user by id.", (_param("user_id", "integer", "", _int(1, 9999)),),
         ("who is user {v:user_id}?", "get user {v:user_id}", "show me the user with id {v:user_id}",
         "look up user {v:user_id}"), "user", True),
)


def say_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return str(value)


@dataclass(frozen=True)
class Wish:
    """A user's words for a tool, the call that they want, and what they ask for: "get ticket", or "ticket"
    where no verb is said, or the tool's name where that is all. `phrases`: how `text` says each parameter."""

    text: str
    call: Call
    asked: str
    phrases: dict[str, str]


def asked_in(tool: Tool, text: str) -> str:
    return f"{tool.order} {tool.noun}" if tool.order and tool.order in text else tool.noun


def pick_ask(state: State, tool: Tool) -> str:
    """Where two tools have one noun, the wording says the verb: that alone tells them apart."""
    clear = tool.order if sum(t.noun == tool.noun for t in state.tools) > 1 else ""
    while True:
        text = state.rng.choice(tool.asks)
        if clear in text:
            return text


def request(state: State, tool: Tool) -> Wish:
    """A wish for this tool, with all of its required and some of its optional parameters."""
    rng, x = state.rng, state.lexicon
    values: dict[str, Any] = {}
    phrases: dict[str, str] = {}
    text = pick_ask(state, tool)
    explicit = rng.random() < 0.08
    asked = tool.name if explicit else asked_in(tool, text)
    if explicit:
        text = rng.choice((f"call {tool.name}", f"use {tool.name}", f"use the tool {tool.name}",
            f"run {tool.name}"))
    for param in tool.params:
        if not param.required and rng.random() < 0.5:
            continue
        value = param.draw(rng, x)
        values[param.name] = value
        phrase = rng.choice(param.phrases)
        if not param.required and any(phrase in other.phrases for other in tool.params if other is not param):
            phrase = f"with {_words(param.name)} {{v}}"  # "for Oslo" may be either's value: say whose
        if explicit:
            phrase = rng.choice((f"with {param.name} {{v}}", f"{param.name}={{v}}"))
        if param.type == "boolean" and "{v}" not in phrase and not value:
            phrase = phrase.replace("make it ", "make it not ")
        phrase = phrase.replace("{v}", say_value(value))
        phrases[param.name] = phrase
        slot = "{p:%s}" % param.name
        bare = "{v:%s}" % param.name
        if slot in text:
            text = text.replace(slot, phrase)
        elif bare in text:
            text = text.replace(bare, say_value(value))
            phrases[param.name] = say_value(value)
        else:
            end = "?" if text.endswith("?") else ""
            text = f"{text.removesuffix('?')} {phrase}{end}"
    return Wish(text, Call(tool.name, values), asked, phrases)


def ask_politely(state: State, text: str) -> str:
    rng = state.rng
    if text.startswith(("what", "how", "who", "is ", "do ", "does", "which", "I ", *OPENINGS[1:])):
        return typed(rng, text, keep_case=True)
    return typed(rng, polite(rng, text, state.lexicon.split, after=False), keep_case=True)


def result_value(rng: Random, x: Lexicon) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.randint(0, 999)
    if kind < 0.5:
        return rng.randint(1, 9999) / 10
    if kind < 0.8:
        return x.word(rng)
    if kind < 0.9:
        return x.name(rng)
    return x.code(rng)


def result(state: State, tool: Tool) -> str:
    """What the tool answers: an object, a bare value, a sentence or an error."""
    rng, x = state.rng, state.lexicon
    kind = rng.random()
    if kind < 0.06:
        return json.dumps({"error": rng.choice((f"{x.word(rng)} not found", "not found", "no access",
            "time out", "invalid id"))})
    noun = tool.noun.replace(" ", "_") or "result"
    if not tool.reads:
        if kind < 0.3:
            return rng.choice(("ok", "done", "success"))
        body: dict[str, Any] = rng.choice(({"status": "ok"}, {"success": True}, {"status": "done"},
            {"ok": True}))
        return json.dumps({**body, "id": rng.choice((rng.randint(1, 9999), x.code(rng)))}
            if rng.random() < 0.5 else body)
    if kind < 0.45:
        return json.dumps({noun: result_value(rng, x)})
    if kind < 0.72:
        keys = rng.sample(RELATIVE, rng.randint(1, 3))
        body = {key: result_value(rng, x) for key in keys}
        if rng.random() < 0.4:
            body[noun] = result_value(rng, x)
        return json.dumps(body, indent=2 if rng.random() < 0.1 else None)
    if kind < 0.85:
        return str(result_value(rng, x))
    if kind < 0.9:
        return json.dumps([x.word(rng) for _ in range(rng.randint(1, 4))])
    text = sentence(rng, x)
    return text[0].upper() + text[1:] + rng.choice((".", ".", "!"))


def say_result(text: str, asked: str = "") -> str:
    """The assistant's words for a result. An object that has the asked key answers with that key alone."""
    try:
        value = json.loads(text)
    except ValueError:
        return text if text[-1] in ".!?" else f"The result is {text}."
    if isinstance(value, dict):
        if set(value) == {"error"}:
            return f"The tool failed: {value['error']}."
        key = asked.replace(" ", "_")
        if key in value:
            value = {key: value[key]}
        said = [f"the {_words(k)} is {say_value(v)}" for k, v in value.items()]
        line = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
        return line[0].upper() + line[1:] + "."
    if isinstance(value, list):
        return f"The result is {say_value(value)}."
    return f"The result is {say_value(value)}."
