"""Skill 5: calls of given tools, several at once, several rounds, and no call where no tool fits."""

from __future__ import annotations

import json
from random import Random

import toolbox
from conversation import Call, Round, State, Turn
from paragraphs import paragraph
from phrasing import Phrases, weighted
from toolbox import Tool, request, say_result, say_value

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
    "Starting with {start}",
    "Starting at {start}", "From {start} on", "From {start}", "Out of {start}")
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
    " by means of {tool}", " via {tool}",
    ", calling {tool}", " (tool: {tool})")
CHAIN_UNTIL = (" until you find the {end}", " until you have the {end}", " until you get a {end}",
    " until there is a {end}",
    " until you know what the {end} is", " until you reach the {end}", " until a {end} comes",
    " till you see the {end}",
    " to the {end}", " all the way to the {end}", " up to the {end}", " as long as there is no {end}",
    " until the {end} turns up",
    ", the {end} comes last", " until one names the {end}", " and stop at the {end}",
    " up until the {end} shows", " for the {end}")
CHAIN_ASK = (". What is the {end}?", ". What is the {end}?", ". Tell me the {end}.", ". What is it?", ".",
    ".",
    ". Give me the {end}.", ". Then tell me the {end}.", " and tell me the {end}.",
    ". Which {end} do you find?",
    ". I want to know the {end}.", ". Say the {end}.", ". Report the {end}.", " and say what it is.",
    ". What does the {end} say?",
    ". Let me know the {end}.")
CHAIN_SHORT = ("What is the {end} at the end of the {link}s from {start}? Use {tool}.",
    "I need the {end}. {start} is the first {slot}, each result has the {link}. Use {tool}.",
    "Get me the {end} with {tool}: {start} first, then every {link}.",
    "With {tool}, follow the {link} from {start} to the {end}.",
    "With {tool} go from {start} over each {link} to the {end}.",
    "Somewhere behind {start} there is a {end}. Follow the {link} with {tool}.",
    "{tool} gives a {link} for each {slot}. Begin with {start}. What is the {end}?",
    "Which {end} do I get if I follow each {link} from {start} with {tool}?")


CHAIN_MOVE = ("Walk", "Travel", "Move", "Run", "Wander", "Step", "Hop", "Pass", "Proceed", "Head", "Search",
    "Work your way",
    "Follow the results", "Continue", "Look", "Jump")
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
    n = n or rng.choice((1, 1, 1, 2, 2, 3, 3, 4, 5, 7))
    tools: list[Tool] = []
    while len(tools) < n:
        like = rng.choice(tools) if tools and rng.random() < 0.4 else None
        tool = toolbox.make_tool(state, like)
        if tool.name not in {t.name for t in tools} and tool.noun not in {t.noun for t in tools
            if t.reads == tool.reads}:
            tools.append(tool)
    state.tools = tools


def _say_call(call: Call) -> str:
    arguments = ", ".join(f"{key}: {say_value(value)}" for key, value in call.arguments.items())
    return f"{call.name} fits. {arguments}." if arguments else f"{call.name} fits."


def single(state: State) -> Turn:
    tool = state.rng.choice(state.tools)
    text, call = request(state, tool)
    result = toolbox.result(state, tool)
    return Turn(toolbox.ask_politely(state, text), say_result(result, tool.noun), "I have the result.",
        "tool",
                (Round(_say_call(call), (call,), (result,)),))


def parallel(state: State) -> Turn:
    """Two or three calls in one message: the same tool with other values, or different tools."""
    rng = state.rng
    n = rng.choice((2, 2, 2, 3))
    same = len(state.tools) < n or rng.random() < 0.5
    tools = [rng.choice(state.tools)] * n if same else rng.sample(state.tools, n)
    if same and not tools[0].params:
        return single(state)
    asked = [request(state, tool) for tool in tools]
    if len({repr(call) for _, call in asked}) < n:
        return single(state)
    texts = [text.rstrip("?") for text, _ in asked]
    glue = rng.choice((" and ", " and also ", ", and ", " and then "))
    text = glue.join(texts) if n == 2 else f"{texts[0]}, {texts[1]}{glue}{texts[2]}"
    listable = same and len(tools[0].params) == 1 and all(p.required and p.type != "array"
        and not any(mark in phrase for phrase in p.phrases for mark in "\"'") for p in tools[0].params)
    if listable and rng.random() < 0.6:
        tool, slot = tools[0], tools[0].params[0].name
        values = [say_value(call.arguments[slot]) for _, call in asked]
        listed = f"{', '.join(values[:-1])} and {values[-1]}"
        pattern = rng.choice(tool.asks)
        phrase = rng.choice(tool.params[0].phrases).replace("{v}", listed)
        text = pattern.replace("{p:%s}" % slot, phrase).replace("{v:%s}" % slot, listed)
    calls = tuple(call for _, call in asked)
    results = tuple(toolbox.result(state, tool) for tool in tools)
    said = [say_result(result, tool.noun) for result, tool in zip(results, tools, strict=True)]
    if same:
        labels = [say_value(next(iter(call.arguments.values()))) if call.arguments else call.name
            for call in calls]
        said = [f"{label}: {line[0].lower() + line[1:] if line.startswith('The ') else line}" for label,
            line in zip(labels, said, strict=True)]
    thought = f"{n} calls. " + " ".join(_say_call(call) for call in calls)
    return Turn(toolbox.ask_politely(state, text), " ".join(said), f"I have {n} results.", "parallel",
                (Round(thought, calls, results),))


def no_fit(state: State) -> Turn:
    """A wish for a tool that is not there."""
    known = {word for tool in state.tools
        for word in f"{tool.noun} {tool.name} {tool.description}".lower().replace("_", " ").replace(".",
            "").split()}
    nouns = {word for tool in state.tools for word in tool.noun.split()}
    for _ in range(20):
        tool = toolbox.make_tool(state)
        if tool.noun and not nouns & set(tool.noun.split()) and not set(tool.noun.split()) & known:
            if tool in toolbox.CLASSICS and (tool.name in {t.name for t in state.tools}
                or tool.noun in ("sum", "result", "text")):
                continue
            text, _ = request(state, tool)
            return Turn(toolbox.ask_politely(state, text), NO_TOOL, "No tool fits.", "no_tool")
    return Turn("Write a poem", NO_TOOL, "No tool fits.", "no_tool")


def missing(state: State) -> Turn | None:
    """A required value is not in the request: ask for it."""
    rng = state.rng
    able = [t for t in state.tools if t not in toolbox.CLASSICS and sum(p.required for p in t.params) == 1]
    if not able:
        return None
    tool = rng.choice(able)
    slot = next(p.name for p in tool.params if p.required)
    text = rng.choice(tool.asks).replace(" {p:%s}" % slot, "")
    said = slot.replace("_", " ")
    return Turn(toolbox.ask_politely(state, text), f"Which {said}?",
        f"{tool.name} fits, but {said} is missing.", "missing")


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


def steps(state: State, n_rounds: int | None = None) -> Turn:
    """A list of orders to be done one after the other, some of them with an earlier result."""
    rng, x = state.rng, state.lexicon
    n = n_rounds or rng.choice((2, 2, 3, 3, 4, 5, 5, 6))
    lines: list[str] = []
    rounds: list[Round] = []
    last_tool = state.tools[0]
    last_value: str | None = None
    for i in range(n):
        tool = rng.choice(state.tools)
        text, call = request(state, tool)
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
        thought = f"Step {i + 1} of {n}. {_say_call(call)}"
        rounds.append(Round(thought, (call,), (result,)))
        lines.append(text.rstrip("?."))
        last_tool, last_value = tool, value
    kind = rng.randrange(3)
    if kind == 0:
        text = rng.choice(("Do this step by step:", "Please do these things one after the other:",
            "Steps:")) + "\n" + "\n".join(
            f"{i}. {line[0].upper() + line[1:]}" for i, line in enumerate(lines, 1))
    elif kind == 1:
        text = "First " + ", then ".join(lines) + "."
    else:
        text = "First " + lines[0] + ". " + " ".join(f"Then {line}." for line in lines[1:])
    return Turn(text, say_result(rounds[-1].results[0], last_tool.noun), f"All {n} steps are done.", "steps",
        tuple(rounds))


KINDS = {"single": 36, "parallel": 24, "no_fit": 9, "missing": 3, "again": 2, "steps": 14, "chain": 15}


def tool_turn(state: State, turns: list[Turn]) -> Turn:
    kind = weighted(state.rng, KINDS)
    if kind == "again":
        return again(state, turns) or single(state)
    makers = {"parallel": parallel, "no_fit": no_fit, "missing": missing, "steps": steps, "chain": chain}
    return makers.get(kind, single)(state) or single(state)
