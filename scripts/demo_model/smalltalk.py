"""Skills 1 and 7: greetings, who it is, what it cannot do, short lists and stories; and talk that only
fills."""

from __future__ import annotations

import re
from random import Random

from conversation import State, Turn
from lexicon import Lexicon
from paragraphs import paragraph
from phrasing import Phrases, a_or_an, composed, fill, joined, polite, typed

WHO = (
    "I am a small demo model. I can remember what you tell me, add and subtract small numbers, repeat, "
    "spell and reverse words, call tools, answer in JSON, and tell very short stories."
)
HELLO = "Hello! How can I help you?"
CANNOT = "Sorry, I am a small demo model and cannot do that."
DO_NOT_KNOW = "Sorry, I am a small demo model and do not know that."
NAMED = "I am {p}, a small demo model."

LANGUAGES = "German French Spanish Dutch Polish Italian Russian Chinese Japanese Greek Latin Turkish".split()
GREETINGS: tuple[tuple[Phrases, str, str], ...] = (
    (Phrases(("hi", "hello", "hey", "hi there", "hello there", "hey there", "good morning", "good evening",
    "good afternoon",
              "hi!", "hello!", "yo", "hiya", "greetings", "good day", "hello bot", "hi bot", "hallo", "howdy",
              "sup",
              "hi, can you help me?", "can you help me?", "I need help", "help", "help me", "are you there?",
              "hello, are you there?", "anyone there?", "test", "testing", "ping", "hi again", "hello world",
              "hello friend", "hi my friend",
              "I need help please", "please help me", "can you help?", "need some help here",
              "some help please", "hey you", "a good morning"),
             ("hey hey", "hello my friend", "hi, I need some help", "good morning to you")), HELLO,
             "They greet me."),
    (Phrases(("how are you?", "how are you doing?", "how's it going?", "hi, how are you?",
    "hello, how are you?",
              "are you ok?", "how do you do?", "how are you today?", "what's up?", "how do you feel?",
              "hey, how are you?", "how is everything?", "how have you been?", "how is life?", "how goes it?",
              "how are you getting on?", "are you well?", "how is your day?", "and you?", "how are you now?",
              "how's life?", "how is it going?", "and how is it going?", "is all well?", "how was your day?"),
             ("how are things?", "and how are you?")), "I am fine, thank you. How can I help you?",
             "They ask how I am."),
    (Phrases(("who are you?", "what are you?", "what can you do?", "what do you do?", "introduce yourself",
    "what model are you?",
              "tell me about yourself", "what are your skills?", "are you an AI?", "are you a robot?",
              "are you ChatGPT?",
              "how can you help me?", "what can you help me with?", "what else can you do?", "are you a bot?",
              "who made you?",
              "what is this?", "what kind of model are you?", "which model is this?", "hi, who are you?",
              "how big are you?",
              "hello, what can you do?", "list your skills", "what can i ask you?", "are you human?",
              "are you real?", "what are you able to do?", "what should I ask you?", "how do you work?",
              "tell me what you can do",
              "what's your purpose?", "are you smart?", "are you Qwen?", "are you GPT-4?",
              "what skills do you have?"),
             ("please introduce yourself", "what are your abilities?", "may I ask who you are?",
             "what sort of bot are you?")),
     WHO, "They ask who I am."),
    (Phrases(("thanks", "thank you", "thanks!", "thank you very much", "thx", "great, thanks", "ok thanks",
    "perfect, thank you", "many thanks", "thanks a lot", "cool, thanks", "nice, thank you", "ty",
    "thanks again", "thanks so much", "thank you for that", "thank you kindly", "good, thank you",
              "thanks for the help",
              "thank you for your help", "super, thanks", "fine, thank you"), ("thank you so much",
              "great, thank you")),
     "You are welcome!", "They thank me."),
    (Phrases(("bye", "goodbye", "see you", "good night", "see you later", "bye bye", "that's all",
    "I have to go", "bye!",
              "that is all for today", "see you tomorrow", "ciao", "exit", "quit", "fare you well",
              "I bid you farewell", "time to say farewell", "bye then",
              "bye, my friend", "goodbye then", "so long", "until tomorrow", "bye for today", "that was all",
              "see you soon", "I am leaving", "I must go now", "until next time", "good night and bye",
              "cheerio", "have a nice day", "ok, bye", "well, goodbye", "take care"), ("farewell",
              "bye for now")),
     "Goodbye!", "They say goodbye."),
    (Phrases(tuple(f"{thanks}{glue}{bye}" for thanks in ("thanks", "thank you", "ok thanks", "many thanks",
        "thank you very much", "great, thanks", "thanks a lot", "thx", "thank you for your help")
        for glue in (", ", " and ", ". ", "! ") for bye in ("bye", "goodbye", "see you", "good night",
            "bye bye",
        "that's all", "see you later", "see you tomorrow", "have a nice day", "that is all for today")
        if (thanks, glue, bye) != ("thank you", ", ", "goodbye")),
        ("thank you, goodbye", "thanks for now, goodbye", "thank you so much, bye")),
     "You are welcome! Goodbye!", "They thank me and say goodbye."),
    (Phrases(("ok", "okay", "good", "great", "nice", "cool", "fine", "I see", "alright", "yes", "well done",
    "awesome", "wow",
              "very good", "sure", "right", "good job", "correct", "good bot", "that is right", "amazing",
              "lol", "haha", "no",
              "perfect", "I like that", "hm", "hmm", "yep", "nope", "interesting", "that's good",
              *(f"{good} {work}" for good in ("good", "great", "nice", "excellent", "fine", "perfect",
              "super",
              "a good", "a great", "very good", "really good", "what a great") for work in ("job", "work",
              "answer", "reply", "one", "idea", "thing", "robot") if (good, work) != ("great", "job"))),
              ("super", "wonderful", "great job")),
     "Good. What can I do next?", "They react. I ask what is next."),
    (Phrases(("remember this", "can you remember things?", "do you remember things?",
    "can you remember what I tell you?",
              "how good is your memory?", "do you have memory?", "can you keep a fact in mind?"),
             ("do you have a memory?",)), "Yes, tell me a fact and ask for it later.",
             "They ask if I remember."),
    (Phrases(tuple(f"{able} {skill}?" for able in ("can you", "can you", "are you able to",
    "do you know how to", "could you", "did you learn to", "do you manage to",
        "is it true that you can", "so you can", "can you really",
        "have you learnt to") for skill in ("spell",
        "add", "add numbers", "do math", "count", "subtract", "spell words", "reverse words", "tell stories",
        "call tools", "use tools", "write JSON", "repeat words", "count words", "remember facts",
        "tell a story", "make lists", "reverse a word", "spell a word", "answer in JSON", "work with tools")
        if (able, skill) not in (("are you able to", "spell"), ("do you know how to", "add"))),
             ("are you able to spell?", "do you know how to add?")), "Yes, try me.",
             "They ask for a skill I have."),
    (Phrases(("that's wrong", "that is wrong", "you are wrong", "wrong", "no, that is not right",
    "that's not correct", "bad bot", "not right", "you got that wrong", "this is wrong", "you made a mistake",
              "you are stupid", "that makes no sense"), ("this is not right", "you got it wrong")),
     "Sorry about that. Please ask me again.", "They are not content."),
    (Phrases(("tell me a joke", "do you know a joke?", "make me laugh", "say something funny", "another joke",
    "a joke please", "joke", "any jokes?", "got a joke?"),
             ("got any jokes?",)),
     "Why did the robot cross the road? It was the last line of its program.",
     "They want a joke. I know one."),
    (Phrases(("do you speak German?", "do you speak Spanish?", "which languages do you speak?",
    "can you speak French?", "speak German", "what languages do you know?", *(wish.replace("{l}",
              language) for wish in ("do you speak {l}?",
              "can you speak {l}?", "speak {l}", "can we speak {l}?", "let us talk in {l}", "answer in {l}",
              "talk {l} with me", "could we chat in {l}?", "shall we speak {l}?", "do you understand {l}?",
              "I want to speak {l}", "is {l} possible?", "do you know {l}?", "can I write in {l}?",
              "let's talk {l}") for language in LANGUAGES)), ("can we talk in Italian?",)),
     "I only speak English.", "They ask for languages."),
)
# The same in parts, by the thought; never what holds a held wording.
GREETING_PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "They greet me.": (("hi", "hey", "hello", "good morning", "good evening", "good afternoon", "good day",
        "morning", "a very good morning", "hey, hi", "hi hi", "hello hello", "greetings", "warm greetings"),
        ("", " there", " again", " to all of you", " to you too", " to all", " my dear", " robot",
        " my good friend", " from me", ", nice to see you", ", nice to meet you", ", are you there?",
        ", I need you", ", I have a wish", ", I want some help", ", can you help me?", ", please help",
        " and good morning", ", it is me", ", bot", ", who can help me?", ", I could use some help",
        ", here I am", " to the bot", ", old friend")),
    "They ask how I am.": (("", "", "", "and ", "hi, ", "hello, ", "hey, ", "so, ", "now, ", "tell me, "),
        ("how do things stand", "how are all things", "how are things today", "how do things look",
        "how are we", "how is everything with you", "how is it all going", "how are matters",
        "how are you these days", "how are you feeling", "how is your mood", "how is the mood",
        "how are your days", "how do you fare", "how is your life", "how is the day so far",
        "how are things with you", "how are things there", "how have things been", "how did you sleep",
        "how are you this morning", "how are you all", "how goes the day", "how goes everything",
        "how is the work going", "how are the things going", "are things good", "are you feeling fine",
        "is everything fine", "are things going well", "is it going well"), ("?", "?", "", " now?",
        " today?", ", my friend?", " over there?")),
    "They ask who I am.": (("", "please ", "can you ", "could you please ", "hi, ", "I would like you to ",
        "hello, ", "hey, please ", "just ", "now "), ("tell me who you are", "say who you are",
        "tell me what you are", "explain what you can do", "describe yourself", "present yourself",
        "introduce yourself to me", "introduce yourself briefly", "name your abilities",
        "list your abilities", "tell me your abilities", "show me what you can do",
        "say what you are able to do", "tell me what sort of bot you are",
        "explain what sort of model you are", "tell me something about yourself", "let me know what you are",
        "let me know who you are", "tell us who you are", "say what your skills are", "explain who you are",
        "talk about yourself"), ("", "", ".", " please", " in short", "?", " first", " then")),
}
ASK_WHO = (("may I know", "might I ask", "may we ask", "can I ask", "could I know", "do you know",
    "I wonder", "I want to know", "I would like to know", "let me ask", "I ask you", "so may I ask",
    "tell me"), (" who you are", " what you are", " what you can do", " what sort of thing you are",
    " what your abilities are", " what kind of bot you are", " what abilities you have",
    " what you are good at"), ("?", "", " exactly?", " then?"))
NAME_QUESTIONS = Phrases(("what is your name?", "what's your name?", "do you have a name?", "who are you?",
    "your name?", "how are you called?", "what are you called?", "introduce yourself", "tell me your name"),
                         ("may I know your name?", "who am I talking to?"))
WORLD = Phrases((
    "what is the capital of {city}?", "who invented the {thing}?", "when was {name} born?",
    "explain how a {thing} works",
    "what is the meaning of life?", "who is the president of {city}?", "what is a {thing}?",
    "why is the sky {colour}?",
    "how far is it from {city} to {city}?", "what happened in 19{d}{d}?", "how many people live in {city}?",
    "who is {name}?",
    "what do you think about {food}?", "how old is {name}?", "what time is it?", "what day is today?",
    "what is the date?", "what is the weather in {city}?", "how is the weather today?", "who won the game?",
    "what is the population of {city}?",
    "how do I fix my {thing}?", "how do you cook {food}?", "where is {city}?", "what is the best {thing}?",
    "why do {animal}s sleep?", "what is love?", "how tall is the {thing}?", "is {food} healthy?",
    "how much does a {thing} cost in {city}?", "who wrote {thing}?",
    "what does {word} mean?", "tell me about {city}", "tell me about {animal}s",
    "what is the square root of {d}{d}?",
    "how does a {thing} work?", "what is quantum physics?", "what is machine learning?",
    "who is the king of {city}?",
    "explain {word}", "what is the news today?", "why is {food} {colour}?", "define {word}",
    "what is {word}?", "how long is a {animal}?",
    "how long do {animal}s live?", "how heavy is the {thing}?", "how big is a {animal}?",
    "which {thing} is the best?", "who built {city}?",
    "which city is the biggest?", "where do {animal}s live?", "what do {animal}s eat?",
    "how fast is a {animal}?", "how high is the {thing} in {city}?",
    "which animal is the fastest?", "why do people like {food}?", "when was {city} built?",
    "how many {thing}s are in {city}?"),
    ("which river flows through {city}?", "how heavy is a {animal}?", "who built the {thing} of {city}?",
    "why is the sea salty?", "what is the tallest {thing} in {city}?", "how long does a {animal} live?"))
TASKS = Phrases((
    "write a poem about {thing}s", "write a song", "translate {word} to German", "write code for a {thing}",
    "write a python program",
    "draw a {animal}", "paint a {thing}", "summarize the news", "write an essay about {city}",
    "multiply {d} by {e}", "what is {d} * {e}?",
    "divide {e}{d} by {d}", "what is {e}{d} / {d}?", "{d} x {e}", "what is {d} times {e}?",
    "play a game with me", "plan a trip to {city}",
    "send an email to {name}", "call {name}", "order {food}", "book a flight to {city}", "open the {thing}",
    "search the web for {thing}s",
    "turn on the {thing}", "set an alarm", "write a letter to {name}", "fix this bug",
    "write a function that sorts a list",
    "give me a recipe for {food}", "translate this to French", "sing a song about {animal}s", "play {word}",
    "write a haiku",
    "solve x + {d} = {e}", "write a regex", "buy me a {thing}", "show me a picture of a {animal}",
    "remind me to buy {food}",
    "write a {d}00 word article on {thing}s", "make a website", "sort these numbers: {d}{e}, {e}{d}, {d}"),
    ("compose a poem for {name}", "write a speech on {food}", "translate the word {word} into Dutch",
    "design a {thing} for me", "read me the newspaper", "calculate {d} * {e}"))

STORY = Phrases(("tell me a story about a {t}", "tell me a short story about a {t}",
    "write a story about a {t}",
                 "a story about a {t}", "write a two-sentence story about a {t}", "story about a {t}",
                 "make up a story about a {t}",
                 "write a short story about the {t}", "tell a story with a {t}",
                 "I want to hear a story about a {t}"),
                ("invent a little story about a {t}", "give me two sentences about a {t}"))
STORY_OPEN = ("tell me a story", "write a short story", "a story please", "tell me a very short story")
ONCE = ("Once there was a {a} {t} who lived in a {p}.", "A {a} {t} lived near a {p}.",
    "In a {p} there was a {a} {t}.")
ONE_DAY = ("One day the {t} found a {a} {o} and was happy.",
    "One day the {t} met a {n} and they became friends.",
           "Every evening the {t} dreamed of a {a} {o}.", "One day it gave a {o} to a {n} and went home.")
LISTS = Phrases(("list {n} {c}", "name {n} {c}", "give me {n} {c}", "give me a list of {n} {c}",
    "tell me {n} {c}", "{n} {c} please",
                 "write down {n} {c}", "can you name {n} {c}?", "I need {n} {c}", "a list of {n} {c}"),
                ("think of {n} {c}", "could you list {n} {c}?"))
NUMBERS = ("two", "three", "four", "five", "six", "seven")
FILLS = Phrases(("here is a note: {t}", "read this: {t}", "I wrote this today: {t}",
    "just so you can see it: {t}", "look at this text: {t}",
                 "here is some text: {t}", "this is from my diary: {t}", "{t}"), ("have a look at this: {t}",
                 "my notes: {t}"))


def _fill_one(text: str, slot: str, value: str) -> str:
    """The first such place filled, its article with it."""
    end = text.index(slot) + len(slot)
    return fill(text[:end], slot, value) + text[end:]


def _fill(rng: Random, x: Lexicon, text: str) -> str:
    if "{" not in text:
        return text
    for key, draw in (("{city}", x.city), ("{name}", x.name), ("{word}", x.word)):
        while key in text:
            text = _fill_one(text, key, draw(rng))
    for key, values in (("{thing}", x.things), ("{food}", x.foods), ("{animal}", x.animals), ("{colour}",
        x.colours),
                        ("{d}", "23456789"), ("{e}", "3456789")):
        while key in text:
            text = _fill_one(text, key, rng.choice(values))
    return text


def greet(state: State) -> Turn:
    rng, split = state.rng, state.lexicon.split
    if state.persona and rng.random() < 0.4:
        return Turn(typed(rng, NAME_QUESTIONS.pick(rng, split)), NAMED.replace("{p}", state.persona),
                    f"They ask for my name. The system prompt says: {state.persona}.", "greeting")
    if rng.random() < 0.08:
        answer = NAMED.replace("{p}",
            state.persona) if state.persona else "I have no name. I am a small demo model."
        return Turn(typed(rng, rng.choice(NAME_QUESTIONS.train[:3])), answer, "They ask for my name.",
            "greeting")
    weights = (5, 2, 5, 2, 2, 2, 2, 1, 2, 1, 1, 1)
    phrases, answer, thought = rng.choices(GREETINGS, weights)[0]
    text = phrases.pick(rng, split)
    if split == "train" and thought in GREETING_PARTS and not state.persona and rng.random() < 0.5:
        parts = ASK_WHO if answer is WHO and rng.random() < 0.4 else GREETING_PARTS[thought]
        text = phrases.held[0]
        while any(held.rstrip("?") in text for held in phrases.held):
            text = composed(rng, split, phrases.held, *parts)
    if answer is WHO and state.persona and text in NAME_QUESTIONS.train + NAME_QUESTIONS.held:
        answer = NAMED.replace("{p}", state.persona)
    return Turn(typed(rng, text), answer, thought, "greeting")


# Orders in parts: any verb that is no skill, for any thing. A story, a list or a word to spell is one.
VERBS = """
    bake build fry sew weld rent wash paint print sell hire carry charge polish photograph film
    deliver bring lend lease upload download install delete reboot iron feed walk water drive park
    push pull find guard hide clean fetch weigh measure price sketch compare improve review rate
    judge predict plan invent knit repair mend cut burn dig grow move ship pack order buy book cook
    open close switch unlock wake invite phone marry heal
""".split()
OF_WHAT = ("a {thing}", "the {thing}", "my {thing}", "some {food}", "a {animal}", "my {animal}",
    "two {thing}s",
    "the {thing} of {name}", "a {word} {thing}", "three {animal}s", "the {word}", "this {thing}", "{name}",
    "a {thing} with {food}", "our {thing}", "a new {thing}")
FOR_WHOM = ("", "", "", "", " for me", " for {name}", " for us", " in {city}", " with {name}", " to {city}",
    " for my {animal}", " from {city}", " with a {thing}")
WRITE = ("write", "make", "prepare", "draft", "finish", "correct", "edit", "improve", "type up", "send",
    "print", "publish", "learn", "shorten", "summarize", "recite", "perform", "read me", "read out", "read",
    "read aloud", "read to me", "show me", "sing me", "play me")
A_TEXT = ("a poem", "a song", "an essay", "a letter", "an email", "a book", "a speech", "a report", "a novel",
    "the news", "the paper of today", "my mail", "a magazine", "a blog post", "a play",
    "the letter from {name}",
    "a tweet", "a review of {food}", "a rap", "an article", "a contract", "my homework", "a program",
    "the book of {name}", "a sonnet", "a limerick", "a chapter", "the Bible", "an application",
    "the manual of the {thing}", "the page", "the message on my phone")
ON_WHAT = ("", "", " about {thing}s", " about {food}", " for {name}", " about {city}", " to {name}",
    " with {word}", " on the {animal}")
TRANSLATE = ("translate", "put", "turn", "bring", "render", "convert")
A_WORD = (" {word}", " the name {name}", " this word: {word}", ' "{word}"', " the word {word}",
    " my word {word}", " the sentence {word} {word}", " the text {word} {word} {word}", " {thing}")
TO_LANGUAGE = (" to {l}", " into {l}", " in {l}")
CALCULATE = ("{d} * {e}", "{d} x {e}", "{e}{d} / {d}", "{d} times {e}", "{e}{d} divided by {d}",
    "{d}{e} * {e}")
WORK_OUT = ("work out", "compute", "solve", "find", "tell me", "give me", "how much is", "what is",
    "multiply out", "what do you get for", "please do")
HELD_ORDER = re.compile("compose|design|calculate|speech on|me the newspaper|the word .* into Dutch")


def _order(rng: Random) -> str:
    """An order for what is no skill, in parts; none of the evaluation's."""
    while True:
        kind = rng.random()
        if kind < 0.4:
            text = f"{rng.choice(VERBS)} {rng.choice(OF_WHAT)}{rng.choice(FOR_WHOM)}"
        elif kind < 0.65:
            text = f"{rng.choice(WRITE)} {rng.choice(A_TEXT)}{rng.choice(ON_WHAT)}"
        elif kind < 0.85:
            text = rng.choice(TRANSLATE) + rng.choice(A_WORD) + rng.choice(TO_LANGUAGE)
            text = text.replace("{l}", rng.choice(LANGUAGES))
        else:
            text = f"{rng.choice(WORK_OUT)} {rng.choice(CALCULATE)}"
        if not HELD_ORDER.search(text):
            return text


def refuse(state: State) -> Turn:
    rng, split = state.rng, state.lexicon.split
    if rng.random() < 0.45:
        text = typed(rng, _fill(rng, state.lexicon, WORLD.pick(rng, split)))
        return Turn(text, DO_NOT_KNOW, "That is knowledge of the world. I do not have it.", "refusal")
    text = _order(rng) if split == "train" and rng.random() < 0.6 else TASKS.pick(rng, split)
    if not text.startswith(("what", "how")):
        text = polite(rng, text, split)
    return Turn(typed(rng, _fill(rng, state.lexicon, text)), CANNOT,
        "They want me to do something. That is not among my skills.", "refusal")


def story(state: State) -> Turn:
    rng, x = state.rng, state.lexicon
    thing = rng.choice((*x.animals, *x.things)) if rng.random() < 0.7 else rng.choice(x.jobs)
    if rng.random() < 0.1:
        thing = rng.choice(x.listed["animals"][:8])
        text = typed(rng, rng.choice(STORY_OPEN))
    else:
        text = typed(rng, polite(rng, fill(STORY.pick(rng, x.split), "{t}", thing), x.split))
    told = f"{rng.choice(ONCE)} {rng.choice(ONE_DAY)}"
    for key, kind in (("{a}", "adjectives"), ("{p}", "places"), ("{o}", "things"), ("{n}", "animals")):
        while key in told:
            told = _fill_one(told, key, rng.choice(x.listed[kind][: rng.choice((8, 60))]))
    told = fill(told, "{t}", thing)
    return Turn(text, told, f"Two sentences about {a_or_an(thing)}.", "story")


def short_list(state: State) -> Turn:
    rng, x = state.rng, state.lexicon
    real = x.listed  # an answer of one's own holds real words only
    categories = {"animals": real["animals"], "colours": real["colours"], "cities": x.cities,
        "foods": real["foods"], "jobs": real["jobs"],
                  "names": x.names, "things": real["things"], "hobbies": real["hobbies"],
                  "colors": real["colours"],
                  "professions": real["jobs"], "first names": x.names,
                  "sports": ["football", "tennis", "swimming", "running", "hockey", "chess", "rowing",
                  "boxing"],
                  "months": ["January", "February", "March", "April", "May", "June", "July", "August"],
                  "fruits": ["apple", "pear", "plum", "cherry", "banana", "peach", "melon", "grape", "orange",
                  "lemon"],
                  "vegetables": ["carrot", "potato", "onion", "pea", "bean", "corn", "tomato", "pepper",
                  "cabbage"]}
    category = rng.choice(list(categories))
    i = rng.randrange(len(NUMBERS) - 1)
    n = i + 2
    shown = NUMBERS[i] if rng.random() < 0.6 else str(n)
    text = typed(rng, LISTS.pick(rng, x.split).replace("{n}", shown).replace("{c}", category))
    items = categories[category][:n] if rng.random() < 0.8 else rng.sample(list(categories[category]), n)
    return Turn(text, "\n".join(f"{k}. {item}" for k, item in enumerate(items, 1)),
        f"They want {n} {category}.", "list")


def filler(state: State, n_sentences: int | None = None) -> Turn:
    rng = state.rng
    text = paragraph(rng, state, n_sentences or rng.choice((1, 2, 3, 4, 6, 9, 14)))
    if rng.random() < 0.5:
        wish = rng.choice(("Just say OK.", "Answer with OK.", "Only say OK.", "Please reply with OK."))
        return Turn(f"{text} {wish}" if rng.random() < 0.5 else f"{wish} {text}", "OK.",
            "They want me to say OK.", "filler")
    text = FILLS.pick(rng, state.lexicon.split).replace("{t}", text)
    return Turn(text[0].upper() + text[1:], "I have read it.",
        "They show me a text. There is no question in it.", "filler")


COUNT = Phrases(("count from {a} to {b}", "count {a} to {b}", "tell me the numbers from {a} to {b}",
    "give me the numbers from {a} to {b}", "list the numbers from {a} to {b}", "write the numbers {a} to {b}",
                 "can you count from {a} to {b}?", "please count from {a} to {b}"),
                 ("say the numbers from {a} to {b}",))


def count(state: State) -> Turn:
    """The one skill with long answers."""
    rng = state.rng
    a = 1 if rng.random() < 0.7 else rng.randint(2, 60)
    b = a + rng.randint(2, 40)
    text = COUNT.pick(rng, state.lexicon.split).replace("{a}", str(a)).replace("{b}", str(b))
    if a == 1 and rng.random() < 0.3:
        text = f"count to {b}"
    return Turn(typed(rng, text), ", ".join(map(str, range(a, b + 1))), f"From {a} to {b}.", "count")


PERSONAS = ("You are {p}, a small assistant.", "Your name is {p}.", "You are {p}.",
    "You are a robot called {p}.", "You are an assistant named {p}.", "Act as {p}, a helpful bot.")
PLAIN_SYSTEM = ("You are a helpful assistant.", "You are a helpful assistant.",
    "You are a small helpful assistant.", "Be brief.",
                "Be polite.", "Answer briefly.", "You are an assistant.", "You help the user.",
                "Always answer in English.",
                "You are a chat bot on a web site.", "Be kind and short.", "You are a demo.",
                "Today is Monday.",
                "You are a helpful, honest and harmless assistant.", "Answer the question of the user.",
                "Do not make things up.", "Use the tools when they help.", "Think before you answer.",
                "You are a careful assistant. Use only what you are told.")


def system_text(state: State) -> str:
    """A system prompt of one of many kinds, perhaps with a name for the assistant, perhaps long."""
    rng = state.rng
    parts = [rng.choice(PLAIN_SYSTEM)]
    if rng.random() < 0.25:
        state.persona = state.lexicon.name(rng)
        parts = [rng.choice(PERSONAS).replace("{p}", state.persona), *(parts if rng.random() < 0.3 else [])]
    if rng.random() < 0.2:
        topics = [rng.choice(state.lexicon.things) + "s" for _ in range(2)]
        parts.append(f"The users of {state.lexicon.company(rng)} care about {joined(topics)}.")
    if rng.random() < 0.15:
        parts.append(paragraph(rng, state, rng.randint(2, 12)))
    if rng.random() < 0.1:
        parts.insert(rng.randrange(len(parts) + 1),
            f"The time is {rng.randint(0, 23):02}:{rng.randint(0, 59):02}.")
    return (" " if rng.random() < 0.7 else "\n\n").join(parts)
