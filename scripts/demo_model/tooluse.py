"""Skill 5: calls of given tools, several at once, several rounds, and no call where no tool fits."""

from __future__ import annotations

import json
from random import Random

import toolbox
from conversation import Call, Round, State, Turn
from lexicon import Split
from paragraphs import paragraph
from phrasing import Phrases, composed, typed, weighted
from toolbox import Tool, Wish, request, say_result, say_value

NO_TOOL = "None of my tools can do that."
CHAIN_WORDS = "next goto then forward continue follow link".split()
END_WORDS = "value answer code treasure result secret total password".split()


CHAIN = Phrases((
    "Start with {start} and follow the {link} with {tool} until you find the {end}. What is the {end}?",
    "Use {tool} on {start}, then on each {link}, until you get the {end}. Tell me the {end}.",
    "Call {tool} with {start}. Each result names the {link} {slot}. Go on until you have the {end}.",
    "Begin at {start}. Follow every {link} until there is a {end}, then tell me the {end}.",
    "Find the {end}: start at {start} and follow the {link}.",
    "Starting from {start}, follow the {link} until you reach the {end}. What is it?",
    "Follow the {link} from {start} with {tool}. What is the {end} at the end?",
    "Walk from {start} to the {link} each time with {tool} until you know the {end}.",
    "Look up {start}. It gives you the {link}. Look that up too, and so on, until there is a {end}.",
), (
    "Go from {start} along each {link} with {tool} to the {end}. What is the {end}?",
    "Beginning with {start}, follow the {link} with {tool} until you know the {end}.",
))
# A wording in parts: where it starts, what it follows, with what, until when, and what is asked in the end.
CHAIN_START = ("Start with {start}", "Start at {start}", "Begin at {start}", "Take {start} first",
    "Begin by taking {start}",
    "The first {slot} is {start}", "Your first {slot} is {start}", "Use {start} as the first {slot}",
    "Run {tool} on {start}", "Call {tool} with {start}", "Use {tool} on {start}", "Give {start} to {tool}",
    "Set out from {start}", "We start at {start}", "I am at {start}", "Look at {start}",
    "Here is the first one: {start}",
    "Enter at {start}", "You begin with {start}", "Feed {tool} with {start}", "Open {start}",
    "Starting with {start}", "Starting at {start}", "From {start} on", "From {start}", "Out of {start}")
CHAIN_GLUE = (". ", ". ", ", ", ", then ", ". Then ", " and ", "; ", ". From there ", ". After that ")
CHAIN_FOLLOW = ("follow the {link}", "follow each {link}", "follow every {link}", "go on to the {link}",
    "continue with the {link}", "go along the {link}", "go along every {link}", "move along each {link}",
    "take the {link} each time", "do the same with each {link}", "do the same with the {link}",
    "jump to the {link}",
    "keep going to the {link}", "visit each {link}", "look up every {link}", "walk along the {link}",
    "always take the {link}", "pass each {link} on", "hop from {link} to {link}", "trace the {link}",
    "look up the {link} that you get", "use each {link} that comes back", "go where the {link} points",
    "step along each {link}", "repeat with the {link}", "go from {link} to {link}", "chase the {link}")
CHAIN_WITH = ("", "", " with {tool}", " with {tool}", " using {tool}", " through {tool}",
    " by means of {tool}", " via {tool}", ", calling {tool}", " (tool: {tool})")
CHAIN_UNTIL = (" until you find the {end}", " until you have the {end}", " until you get a {end}",
    " until there is a {end}",
    " until you know what the {end} is", " until you reach the {end}", " until a {end} comes",
    " till you see the {end}",
    " to the {end}", " all the way to the {end}", " up to the {end}", " as long as there is no {end}",
    " until the {end} turns up",
    ", the {end} comes last", " until one names the {end}", " and stop at the {end}",
    " up until the {end} shows", " for the {end}")
CHAIN_ASK = (". What is the {end}?", ". What is the {end}?", ". Tell me the {end}.", ". What is it?", ".",
    ".", ". Give me the {end}.", ". Then tell me the {end}.", " and tell me the {end}.",
    ". Which {end} do you find?",
    ". I want to know the {end}.", ". Say the {end}.", ". Report the {end}.", " and say what it is.",
    ". What does the {end} say?", ". Let me know the {end}.")
CHAIN_SHORT = ("What is the {end} at the end of the {link}s from {start}? Use {tool}.",
    "I need the {end}. {start} is the first {slot}, each result has the {link}. Use {tool}.",
    "Get me the {end} with {tool}: {start} first, then every {link}.",
    "With {tool}, follow the {link} from {start} to the {end}.",
    "With {tool} go from {start} over each {link} to the {end}.",
    "Somewhere behind {start} there is a {end}. Follow the {link} with {tool}.",
    "{tool} gives a {link} for each {slot}. Begin with {start}. What is the {end}?",
    "Which {end} do I get if I follow each {link} from {start} with {tool}?")


CHAIN_MOVE = ("Walk", "Travel", "Move", "Run", "Wander", "Step", "Hop", "Pass", "Proceed", "Head", "Search",
    "Work your way", "Follow the results", "Continue", "Look", "Jump")
CHAIN_PATH = (" over each {link}", " over the {link}", " by way of each {link}", " through every {link}",
    " by each {link}",
    " past each {link}", " along the {link}", " along every {link}", " following the {link}",
    " to each {link}", " over all {link}s",
    " from one {link} to the other", " on to the {link}", " by the {link}", " down the {link}",
    " across every {link}")


def _chain_wording(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(CHAIN_SHORT)
    if kind < 0.35:
        using, path = rng.choice(CHAIN_WITH), rng.choice(CHAIN_PATH)
        path = path + using if rng.random() < 0.6 else using + path
        return "".join((rng.choice(CHAIN_MOVE), " from {start}", path, rng.choice(CHAIN_UNTIL),
            rng.choice(CHAIN_ASK)))
    while True:
        parts = (CHAIN_START, CHAIN_GLUE, CHAIN_FOLLOW, CHAIN_WITH, CHAIN_UNTIL, CHAIN_ASK)
        start, glue, follow, using, until, ask = (rng.choice(part) for part in parts)
        if start.startswith(("From", "Out of", "Starting")):
            glue = rng.choice((" ", ", "))
        if glue == ". ":
            follow = follow[0].upper() + follow[1:]
        text = f"{start}{glue}{follow}{using}{until}{ask}"
        if rng.random() < 0.15:
            text = f"{rng.choice(('Please: ', 'A task: ', 'Ok. ', 'A little walk: ', 'Now: '))}{text}"
        if text.count("{tool}") < 2:
            return text


def make_toolset(state: State, n: int | None = None) -> None:
    """The tools of a conversation: distinct names, some of them easily confused."""
    rng = state.rng
    n = n or rng.choice((1, 1, 2, 2, 3, 3, 4, 4, 5, 7))
    train = state.lexicon.split == "train"  # the held-out words are few as they are
    state.pool = toolbox.draw_pool(rng, state.lexicon) if train and rng.random() < 0.5 else None
    tools: list[Tool] = []
    while len(tools) < n:
        like = rng.choice(tools) if tools and rng.random() < 0.4 else None
        tool = toolbox.make_tool(state, like, state.pool)
        if tool.name not in {t.name for t in tools} and tool.noun not in {t.noun for t in tools
            if t.reads == tool.reads}:
            tools.append(tool)
    state.tools = tools


def _say_call(call: Call) -> str:
    arguments = ", ".join(f"{key}: {say_value(value)}" for key, value in call.arguments.items())
    return f"{call.name} fits. {arguments}." if arguments else f"{call.name} fits."


def _think(wish: Wish) -> str:
    """What is asked stands alone before the tool is chosen: the choice is a comparison of neighbours."""
    return f"{wish.asked}? {_say_call(wish.call)}"


def single(state: State) -> Turn:
    tool = state.rng.choice(state.tools)
    wish = request(state, tool)
    result = toolbox.result(state, tool)
    return Turn(toolbox.ask_politely(state, wish.text), say_result(result, tool.noun), "I have the result.",
        "tool", (Round(_think(wish), (wish.call,), (result,)),))


# Between two wishes, and between two values of one: "the weather in Oslo and in Paris".
GLUE = Phrases((" and ", " and ", " and also ", ", and ", " and then ", ", then ", "; ", ". ", ". Also ",
    ". And ", ", plus ", " and after that ", ". Then ", ", and also ", " & ", " + ", ", but also ", ", next ",
    ". Next, ", " and at the same time ", ", and then "),
    (" and ", " and also ", ", and ", " and then ", " and besides ", ". On top of that "))
VALUE_GLUE = Phrases((" and ", " and ", " and ", " and also ", ", and ", " and then ", " plus ", ", then ",
    ", and also ", " & ", " and at last ", " and of course ", " followed by "), (" and ", " as well as "))
# The same in parts: what joins is any words that join, not those that a list has.
GLUE_PARTS = ((" ", ", ", ", ", "; ", ". ", ". "), ("and", "also", "then", "plus", "but", "next", "further",
    "moreover", "beyond that", "in addition", "in addition to that", "apart from that", "aside from that",
    "at the same time", "by the way", "while you are at it", "likewise", "as another thing", "too",
    "along with that", "together with that", "and further", "and likewise", "and in addition", "second",
    "after this", "and beyond that", "and as the next thing", "over and above this", "not only that but"),
    (" ", " ", ", ", " also ", " please ", " then "))
VALUE_GLUE_PARTS = ((" ", " ", " ", ", "), ("and", "as", "plus", "also", "just as", "together", "along",
    "even", "like", "besides", "then", "next", "equally", "as much", "as far", "as good", "as long",
    "and as", "no less", "in addition", "not only that but", "likewise", "same", "and in addition",
    "or rather both, so", "and with"), (" ", " ", " as ", " as ", " with ", " also ", " to ", " again ",
    " too ", " even ", " just ", " then ", " likewise ", " and "))
AGAIN_GLUE = Phrases((" and ", ", and ", "? And ", "? And then ", "? Also ", ". And ", ". Also ",
    " and also ",
    " and what about ", ", what about ", ", and the same ", ", then the same ", ", then again ", "; ",
    ", and then ", " and once more ", "? And what about "), ("? And also ", " and do the same "))
GLUE_WORDS = frozenset("and also then plus both each of same about again next for with in at to the".split())
LISTS = Phrases(("both: ", "two things: ", "do both: ", "two wishes: ", "at once: ", "together: ",
    "all of this: ", "I need two things: ", "both of these: ", "please do all this: ", "a few things: ",
    "one after the other: "),
    ("I have two wishes: ",))


def _glue(rng: Random, split: Split, listed: Phrases, parts: tuple[tuple[str, ...], ...]) -> str:
    if split == "held" or rng.random() < 0.5:
        return listed.pick(rng, split)
    text = composed(rng, split, listed.held, *parts)
    return text if not text.startswith(". ") else f". {text[2].upper()}{text[3:]}"


def _listed(parts: list[str], glue: str) -> str:
    return ", ".join(parts[:-1]) + glue + parts[-1]


def _half_sentence(state: State, tool: Tool, n: int) -> tuple[str, list[Wish]] | None:
    """n calls that differ in one value, the rest of the sentence said once."""
    rng, x = state.rng, state.lexicon
    wish = request(state, tool)
    if not tool.order and len(wish.call.arguments) > 1 and tool.noun != "weather":
        return None  # "3 + 4 and 5" would be a sum of three
    able = []
    for param in tool.params:
        phrase, shown = wish.phrases.get(param.name, ""), say_value(wish.call.arguments.get(param.name, ""))
        alone = bool(shown) and phrase.count(shown) == 1 and wish.text.count(phrase) == 1
        open_ = param.type in ("string", "integer", "number") and not param.choices
        if alone and open_ and not any(mark in phrase for mark in "\"'"):
            able.append(param)
    if not able:
        return None
    param = rng.choice(able)
    values = [wish.call.arguments[param.name], *(param.draw(rng, x) for _ in range(n - 1))]
    shown = [say_value(value) for value in values]
    if len(set(shown)) < n or any(GLUE_WORDS & set(value.lower().split()) for value in shown):
        return None
    phrase = wish.phrases[param.name]
    phrases = [phrase.replace(shown[0], value) for value in shown]
    loose = phrase.startswith(("and ", "(", "where "))
    kind, bare = rng.random(), wish.text.rstrip("?")
    if kind < 0.25 and bare.endswith(phrase) and not loose:
        tails = phrases[1:] if rng.random() < 0.7 else shown[1:]
        said = f"{bare}{AGAIN_GLUE.pick(rng, x.split)}{tails[0] if n == 2 else _listed(tails, ' and ')}"
        said += "?" if wish.text.endswith("?") or "? " in said else ""
    else:
        glue = _glue(rng, x.split, VALUE_GLUE, VALUE_GLUE_PARTS)
        if x.split == "train" and any(set(glue.split()) & set(value.lower().split()) for value in shown):
            return None
        if kind < 0.6 and not loose:
            together = _listed(phrases, glue)
            together = f"both {together}" if n == 2 and glue == " and " and rng.random() < 0.2 else together
        else:
            together = _listed(shown, glue)
            if glue == " and " and rng.random() < 0.25:
                together = f"both {together}" if n == 2 and rng.random() < 0.6 else f"each of {together}"
            together = phrase.replace(shown[0], together)
        said = wish.text.replace(phrase, together)
    return said, [Wish("", Call(tool.name, {**wish.call.arguments, param.name: value}), wish.asked, {})
        for value in values]


def parallel(state: State) -> Turn:
    """Two or three calls in one message, in training four too: the same tool with other values, or different
    tools. The thought does not say how many come: that would have to be known before the first is read."""
    rng, x = state.rng, state.lexicon
    n = rng.choice((2, 2, 2, 3) if x.split == "held" else (2, 2, 2, 3, 3, 4))
    same = len(state.tools) < n or rng.random() < 0.5
    tools = [rng.choice(state.tools)] * n if same else rng.sample(state.tools, n)
    if same and not tools[0].params:
        return single(state)
    in_half = same and rng.random() < (0.7 if x.split == "held" else 0.8)
    half = _half_sentence(state, tools[0], n) if in_half else None
    if half:
        text, wishes = half
    else:
        wishes = [request(state, tool) for tool in tools]
        texts, glue = [wish.text.rstrip("?") for wish in wishes], _glue(rng, x.split, GLUE, GLUE_PARTS)
        if glue.startswith(". ") and glue.endswith(". "):
            texts[-1] = texts[-1][0].upper() + texts[-1][1:]
        text = _listed(texts, glue)
    if len({repr(wish.call) for wish in wishes}) < n:
        return single(state)
    calls = tuple(wish.call for wish in wishes)
    results = tuple(toolbox.result(state, tool) for tool in tools)
    said = [say_result(result, tool.noun) for result, tool in zip(results, tools, strict=True)]
    if same:
        said = [f"{label}: {line[0].lower() + line[1:] if line.startswith('The ') else line}"
            for label, line in zip(_labels(calls), said, strict=True)]
    thought = " ".join(_think(wish) if i == 1 else f"{i}. {_think(wish)}" for i, wish in enumerate(wishes, 1))
    if not half and n == 2 and rng.random() < 0.12:
        asked = typed(rng, LISTS.pick(rng, x.split) + text, keep_case=True)
    else:
        asked = toolbox.ask_politely(state, text)
    return Turn(asked, " ".join(said), f"I have {n} results.", "parallel", (Round(thought, calls, results),))


def _labels(calls: tuple[Call, ...]) -> list[str]:
    """What tells calls of one tool apart: the first argument that differs in all of them."""
    for key in calls[0].arguments:
        shown = [say_value(call.arguments.get(key, "")) for call in calls]
        if len({*shown, ""}) > len(calls):
            return shown
    return [say_value(next(iter(call.arguments.values()))) if call.arguments else call.name for call in calls]


def no_fit(state: State) -> Turn:
    """A wish for a tool that is not there."""
    known = {word for tool in state.tools
        for word in f"{tool.noun} {tool.name} {tool.description}".lower().replace("_", " ").replace(".",
            "").split()}
    for _ in range(20):
        tool = toolbox.make_tool(state, pool=state.pool)  # its verb and its adjective may be another tool's
        if tool.noun.split()[-1] not in known:
            if tool in toolbox.CLASSICS and (tool.name in {t.name for t in state.tools}
                or tool.noun in ("sum", "result", "text")):
                continue
            wish = request(state, tool)
            return Turn(toolbox.ask_politely(state, wish.text), NO_TOOL,
                f"{wish.asked}? No tool fits.", "no_tool")
    return Turn("Write a poem", NO_TOOL, "poem? No tool fits.", "no_tool")


def missing(state: State) -> Turn | None:
    """A required value is not in the request: ask for it."""
    rng = state.rng
    able = [t for t in state.tools if t not in toolbox.CLASSICS and sum(p.required for p in t.params) == 1]
    if not able:
        return None
    tool = rng.choice(able)
    slot = next(p.name for p in tool.params if p.required)
    ask = toolbox.pick_ask(state, tool)
    text = ask.replace(" {p:%s}" % slot, "")
    said = slot.replace("_", " ")
    return Turn(toolbox.ask_politely(state, text), f"Which {said}?",
        f"{toolbox.asked_in(tool, ask)}? {tool.name} fits, but {said} is missing.", "missing")


def again(state: State, turns: list[Turn]) -> Turn | None:
    """A question about a result that is already there: no call."""
    rng = state.rng
    past = [t for t in turns if t.skill == "tool"]
    if not past:
        return None
    turn = past[-1]
    tool = next((t for t in state.tools if t.name == turn.rounds[0].calls[0].name), None)
    if tool is None:
        return None
    text = rng.choice(("what was the result?", "what did the tool say?", "repeat the result",
        "say that again", "what was the last result?"))
    return Turn(text, turn.answer, "The result is above.", "again")


def _one_text(tool: Tool) -> bool:
    return len(tool.params) == 1 and tool.params[0].type == "string" and not tool.params[0].choices


def chain(state: State, n_rounds: int | None = None, wording: str | None = None) -> Turn:
    """Follow what each result names until one holds the answer. `wording`: "train" or "held", else the
    lexicon's split."""
    rng, x = state.rng, state.lexicon
    able = [t for t in state.tools if len(t.params) == 1 and t.params[0].type == "string"
        and not t.params[0].choices]
    if able:
        tool = rng.choice(able)
    else:
        while True:
            tool = toolbox.make_tool(state)
            if tool.reads and _one_text(tool):
                break
        state.tools = [*(t for t in state.tools if t.name != tool.name)][:4]
        state.tools.insert(rng.randrange(len(state.tools) + 1), tool)
    only = len(able) < 2  # a wording may leave out which tool only if no other would do
    slot, n = tool.params[0].name, n_rounds or rng.choice((2, 2, 3, 3, 4, 5, 5, 6))
    link, end = rng.choice(CHAIN_WORDS), rng.choice(END_WORDS)
    if x.split == "train" and rng.random() < 0.4:
        link = x.word(rng)
    if x.split == "train" and rng.random() < 0.4:
        end = x.word(rng)
    if link in (end, slot):
        return chain(state, n_rounds, wording)
    kind = rng.random()
    draw = x.code if kind < 0.4 else x.made_up if kind < 0.82 else (lambda r: tool.params[0].draw(r, x))
    stops = [draw(rng) for _ in range(n)]
    found = toolbox.result_value(rng, x)
    form = rng.randrange(3)
    results: list[str] = []
    for stop in stops[1:]:
        noise = {rng.choice(toolbox.RELATIVE): toolbox.result_value(rng, x)} if rng.random() < 0.3 else {}
        results.append(json.dumps({**noise, link: stop}) if form == 0 else f"{link.capitalize()}: {stop}"
            if form == 1
                       else f"{paragraph(rng, state, 1)} The {link} is {stop}." if rng.random() < 0.3
                           else f"The {link} is {stop}.")
    results.append(json.dumps({end: found}) if form == 0 else f"{end.capitalize()}: {found}" if form == 1
        else f"The {end} is {found}.")
    pattern = CHAIN.pick(rng,
        wording or x.split) if x.split == "held" or rng.random() < 0.35 else _chain_wording(rng)
    while "{tool}" not in pattern and not only:
        pattern = CHAIN.pick(rng, wording or x.split) if x.split == "held" else _chain_wording(rng)
    for key, word in (("{start}", stops[0]), ("{link}", link), ("{end}", end), ("{tool}", tool.name),
        ("{slot}",
        slot.replace("_", " "))):
        pattern = pattern.replace(key, word)
    text = pattern
    rounds = tuple(Round(f"{'Start' if i == 0 else 'The ' + link} is {stop}." if i == 0
        else f"Not the {end} yet. The {link} is {stop}.",
                         (Call(tool.name, {slot: stop}),), (result,)) for i, (stop,
                         result) in enumerate(zip(stops, results, strict=True)))
    return Turn(text, f"The {end} is {say_value(found)}.", f"I have the {end}.", "chain", rounds)


FIRST_WORDS = ("First, ", "First ", "To begin with, ", "Start: ", "At first ", "")
STEP_WORDS = ("Then ", "After that ", "Next, ", "After this, ", "Then, ", "And then ", "Once that is done, ",
    "Next ", "Now ", "When you have that, ", "Afterwards ")
STEP_HEADS = ("Do these steps:", "Work through this list:", "My list:", "To do:", "One by one:",
    "Do all of this:",
    "Follow these steps:", "A plan:", "Tasks, in this order:", "Please do:", "In this order:")


def steps(state: State, n_rounds: int | None = None) -> Turn:
    """A list of orders to be done one after the other, some of them with an earlier result."""
    rng, x = state.rng, state.lexicon
    n = n_rounds or rng.choice((2, 3, 3, 4, 5, 5, 5, 6))
    lines: list[str] = []
    rounds: list[Round] = []
    last_tool = state.tools[0]
    last_value: str | None = None
    tools = state.tools
    if x.split == "train" and rng.random() < 0.35:  # one tool again, with other parameters
        able = [tool for tool in tools if any(not param.required for param in tool.params)] or tools
        tools = rng.sample(able, min(len(able), rng.choice((1, 2))))
    for i in range(n):
        tool = rng.choice(tools)
        wish = request(state, tool)
        text, call = wish.text, wish.call
        slots = [p for p in tool.params if p.type == "string" and not p.choices and p.name in call.arguments]
        if last_value is not None and slots and rng.random() < 0.5:
            value = str(call.arguments[slots[0].name])
            if text.count(value) == 1 and len(value) > 2:
                text = text.replace(value, rng.choice(("the result", "that result", "the last result")))
                call = Call(call.name, {**call.arguments, slots[0].name: last_value})
        noun = (tool.noun or "result").replace(" ", "_")
        value = x.word(rng) if rng.random() < 0.5 else x.code(rng)
        result = value if rng.random() < 0.3 else json.dumps({noun if rng.random() < 0.6
            else "result": value})
        thought = f"Step {i + 1} of {n}. {wish.asked}? {_say_call(call)}"
        rounds.append(Round(thought, (call,), (result,)))
        lines.append(text.rstrip("?."))
        last_tool, last_value = tool, value
    kind = rng.randrange(3 if x.split == "held" else 5)
    if kind == 3:
        words = [rng.choice(STEP_WORDS) for _ in lines]
        text = " ".join(f"{rng.choice(FIRST_WORDS)}{line}." if i == 0 else f"{word}{line}."
            for i, (line, word) in enumerate(zip(lines, words, strict=True)))
    elif kind == 4:
        mark = rng.choice(("- ", "* ", "{i}) ", "Step {i}: ", "{i}: ", "({i}) "))
        text = rng.choice(STEP_HEADS) + "\n" + "\n".join(f"{mark.replace('{i}', str(i))}{line}"
            for i, line in enumerate(lines, 1))
    elif kind == 0:
        text = rng.choice(("Do this step by step:", "Please do these things one after the other:",
            "Steps:")) + "\n" + "\n".join(
            f"{i}. {line[0].upper() + line[1:]}" for i, line in enumerate(lines, 1))
    elif kind == 1:
        text = "First " + ", then ".join(lines) + "."
    else:
        text = "First " + lines[0] + ". " + " ".join(f"Then {line}." for line in lines[1:])
    return Turn(text, say_result(rounds[-1].results[0], last_tool.noun), f"All {n} steps are done.", "steps",
        tuple(rounds))


KINDS = {"single": 29, "parallel": 28, "no_fit": 13, "missing": 3, "again": 2, "steps": 18, "chain": 15}


def tool_turn(state: State, turns: list[Turn]) -> Turn:
    kind = weighted(state.rng, KINDS)
    if kind == "again":
        return again(state, turns) or single(state)
    makers = {"parallel": parallel, "no_fit": no_fit, "missing": missing, "steps": steps, "chain": chain}
    return makers.get(kind, single)(state) or single(state)
