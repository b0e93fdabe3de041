"""The words the generator draws from, and which of them training never sees.

Every list is written by hand for this model. `Lexicon("train")` and `Lexicon("held")` share no name, city,
colour, thing, made-up word or pair of summands: the held half serves the evaluation alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Literal
from zlib import crc32

Split = Literal["train", "held"]

NAMES = """
    Anna Ben Carla David Elena Felix Greta Hugo Ida Jonas Klara Leo Maria Nico Olga Paul Rosa Simon Tina
    Uwe Vera Walter Xenia Yusuf Zoe Alice Bob Carol Daniel Emma Frank Grace Henry Irene Jack Kate Liam
    Mia Noah Olivia Peter Quinn Rachel Sam Tom Ursula Victor Wendy Yara Zack Aisha Bilal Chen Diego
    Esther Farid Gita Hana Igor Jamal Kenji Lakshmi Mateo Nadia Omar Priya Rafael Sofia Tariq Usha
    Vikram Wei Yuki Zainab Adam Bella Chris Diana Eric Fiona George Helen Ivan Julia Kevin Laura Mark
    Nina Oscar Petra Robert Sara Thomas Vanessa William Amir Bruno Cleo Dora Eli Flora Gus Hope Ines
    James Karen Lucas Martha Nathan Ophelia Pedro Ruth Stefan Theo Violet Max John Mary Michael Lisa
    Alex Andrea Anton Astrid Boris Clara Dmitri Edith Emil Erika Ethan Eva Finn Hannah Harry Isabel Jane
    Jan Joe Kim Lena Linda Lucy Magnus Marta Molly Naomi Nora Otto Pablo Pia Ralf Rita Ron Sandra Sven
    Tara Tim Udo Ute Vince Will Yasmin Zelda Abel Agnes Axel Beth Cora Dean Ella Fred Gina Hans Iris
    Josh Kurt Lars Mona Nils Olaf Paula Rolf Selma Tobias
""".split()
HELD_NAMES = """
    Arthur Bianca Cyril Delia Edgar Frida Gordon Heidi Ismael Josefine Kaspar Leonie Milan Nelly Orson
    Phoebe Quentin Rosalind Silas Thea Ulrich Valerie Winston Ximena Yannick Zora Dexter Marlene
    Priscilla Roland
""".split()
CITIES = """
    Berlin Paris London Madrid Rome Vienna Oslo Stockholm Helsinki Warsaw Prague Budapest Athens Lisbon
    Dublin Brussels Amsterdam Zurich Geneva Munich Hamburg Cologne Milan Naples Venice Barcelona Porto
    Lyon Nice Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Cairo Nairobi Lagos Accra Tunis
    Boston Chicago Denver Dallas Austin Seattle Portland Miami Toronto Montreal Vancouver Lima Quito
    Bogota Santiago Havana Sydney Melbourne Perth Auckland Dubai Istanbul Ankara Moscow Kiev Minsk Riga
    Vilnius Tallinn Sofia Belgrade Zagreb Tirana Bern Bonn Dresden Leipzig Graz Bergen Turin Seville
    Ghent York Leeds Oxford Cambridge Glasgow Cardiff Detroit Houston Phoenix Boise Atlanta
""".split()
HELD_CITIES = """
    Salzburg Marseille Krakow Valencia Rotterdam Aarhus Edinburgh Bristol Nagoya Hanoi Manila Jakarta
    Casablanca Dakar Calgary Memphis Omaha Brisbane Basel Bremen Florence Malmo
""".split()
LONG_CITIES = ["New York", "San Francisco", "Los Angeles", "Hong Kong", "Buenos Aires", "Cape Town"]
HELD_LONG_CITIES = ["Las Vegas", "San Diego", "Mexico City"]
COLOURS = """
    red blue green yellow orange purple pink black white grey brown teal navy gold silver violet
    turquoise beige maroon indigo lime cyan magenta olive coral crimson
""".split()
HELD_COLOURS = "amber lavender scarlet ivory emerald mint".split()
ANIMALS = """
    cat dog rabbit hamster parrot horse goat sheep cow pig duck goose hen mouse rat fox wolf bear lion
    tiger elephant giraffe zebra monkey owl eagle crow swan turtle frog snake lizard fish shark whale
    dolphin penguin seal otter beaver hedgehog squirrel deer moose camel donkey bee ant spider snail
    butterfly crab canary pony ferret
""".split()
HELD_ANIMALS = "badger falcon lobster panther gecko pelican walrus llama".split()
FOODS = """
    pizza pasta rice soup bread cheese salad cake pie noodles curry sushi tacos burger fries apples
    pears bananas grapes cherries plums peaches melon tomatoes carrots potatoes onions beans peas corn
    honey chocolate cookies pancakes waffles omelette sausages fish chicken beef tofu lentils mushrooms
    olives nuts yogurt butter jam
""".split()
HELD_FOODS = "dumplings lasagna mango spinach risotto pretzels blueberries falafel".split()
THINGS = """
    lamp table chair door window clock book pen pencil paper bag box bottle cup plate spoon fork knife
    bed sofa mirror carpet camera phone radio computer keyboard screen bicycle car bus train boat ship
    plane rocket robot kite ball drum guitar piano violin flute hammer nail saw rope ladder bucket broom
    basket blanket pillow candle lantern key lock coin ring crown hat coat scarf glove shoe boot
    umbrella backpack map compass tent castle bridge tower garden river mountain forest island lake
    village street market school library museum station harbour lighthouse windmill farm mill cloud star
    moon stone leaf tree flower seed feather shell wheel engine letter ticket
""".split()
HELD_THINGS = """
    anchor teapot telescope suitcase trumpet wagon puzzle statue kettle chimney fountain submarine
    typewriter barrel hammock magnet
""".split()
PLACES = """
    kitchen garden garage attic cellar office hall library bathroom bedroom forest village market park
    school museum station harbour cave valley tower castle shop barn shed
""".split()
HELD_PLACES = "greenhouse balcony workshop bakery stable tunnel".split()
JOBS = """
    teacher doctor nurse baker farmer pilot sailor painter writer singer dancer cook driver gardener
    carpenter plumber lawyer judge clerk chemist engineer designer tailor mechanic librarian musician
    actor student scientist photographer waiter firefighter builder miner
""".split()
HELD_JOBS = "architect dentist electrician journalist shepherd translator".split()
HOBBIES = """
    chess painting running swimming cycling hiking fishing reading cooking knitting dancing singing
    skating skiing climbing sailing gardening baking drawing photography yoga football tennis pottery
""".split()
HELD_HOBBIES = "archery badminton juggling rowing origami surfing".split()
ADJECTIVES = """
    small big old new young red green blue quiet loud happy sad brave shy clever kind lazy busy tired
    hungry shiny dusty heavy light warm cold soft hard round tiny huge slow fast golden silver wooden
    broken strange calm gentle proud bright dark empty full sweet sour rusty lonely friendly curious
""".split()
HELD_ADJECTIVES = "crooked velvet nervous gigantic foggy cheerful".split()
PLAIN = """
    about above after again air all along also always and another answer around ask away back because
    before below best better between both call came can change close come could country cut day did
    different does down each early earth eat end enough even every example eye face family far father
    feel few find first follow food form found four from girl give good great group grow had hand hard
    have head hear help here high hold home house how idea important inside just keep kind know land
    large last late learn leave left life light line listen little live long look made make many mean
    men might miss more most mother move much must name near need never next night nothing now number
    off often old once one only open other our over own page part people picture place plant play point
    put question quick quite read real right room run said same saw say second see sentence set she
    short should show side simple sing sister sleep slow small some song soon sound space spell stand
    start state still stop story strong study such sun sure take talk teach tell than that the their
    them then there these they thing think this those thought three through time together too took town
    try turn two under until use very voice wait walk want was watch water way well went were what when
    where which while white who why wind wish with wonder word work world would write year yes you young
    hello morning evening summer winter spring autumn window yellow orange silver circle corner danger
    dinner doctor dragon engine family finger flower forest friend future garden giant hammer health
    heaven hidden island jacket jungle kitten ladder legend letter little market master memory mirror
    modern moment monkey mother nature needle number object office orange people pepper person planet
    player pocket police potato prince public puzzle rabbit reason record rhythm rocket school season
    secret shadow signal silent simple singer sister spider spirit square stable stream street strike
    string summer sunset system tables temple ticket timber travel tunnel turtle valley velvet vessel
    violin vision window winter wisdom wonder writer banana keyboard strawberry computer elephant
    umbrella language mountain notebook sandwich sunshine adventure beautiful chocolate dangerous
    education furniture happiness important knowledge landscape mysterious newspaper orchestra
    programming question restaurant something telephone university vegetable wonderful yesterday
""".split()
HELD_PLAIN = """
    blossom captain diamond gravity harvest journey kingdom lantern meadow nephew orchard pebble quartz
    ribbon saddle thunder utensil volcano whisper zipper marble carpet guitar plastic history freedom
    cabbage biscuit helmet magic pirate rocket cactus basket village
""".split()
COMPANIES = """
    Nordlys Altaro Brightway Corvex Delmont Evergo Falkor Granite Helio Juniper Kestrel Lumen Maple
    Nimbus Orbit Pioneer Quarry Rivero Summit Tandem Umbra Vertex Willow Zenith
""".split()
HELD_COMPANIES = "Argento Bluefin Cascade Foxglove Ironwood Solstice".split()
HELD_READ_VERBS = "obtain inspect".split()
HELD_DO_VERBS = "launch approve attach block".split()
HELD_NOUNS = """
    warehouse shipment subscription thermostat curtain passport museum beacon lottery elevator orchestra
    voucher glacier reactor
""".split()
HELD_WORDS = frozenset(
    word.lower()
    for words in (HELD_NAMES, HELD_CITIES, HELD_COLOURS, HELD_ANIMALS, HELD_FOODS, HELD_THINGS, HELD_PLACES,
        HELD_JOBS,
        HELD_HOBBIES, HELD_ADJECTIVES, HELD_PLAIN, HELD_COMPANIES, HELD_READ_VERBS, HELD_DO_VERBS, HELD_NOUNS)
    for word in words
)
ONSETS = """
    b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl pr sh sk sl sn st th tr tw qu ch bl sp y x
""".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz" + "aaeiou"
VOWELS = "a e i o u a e i o u ai ea ee ia oo ou y".split()
CODAS = ["", "", "", "", "n", "r", "l", "s", "t", "m", "k", "x", "nd", "rt", "st", "ck", "ll", "ng", "sh"]
CODAS += ["p", "d"]


TOKENIZER = Path(__file__).parents[2] / "model" / "demo" / "tokenizer.json"


def token_pieces() -> list[str]:
    """The tokens made of letters alone. A word built from them makes the model see how each of its tokens is
    spelled, those too that no list holds."""
    if not TOKENIZER.exists():
        return []
    vocabulary = json.loads(TOKENIZER.read_text())["model"]["vocab"]
    matches = (re.fullmatch(r"Ġ?([A-Za-z]{2,12})", token) for token in vocabulary)
    return sorted({match[1].lower() for match in matches if match})


def is_held(text: str) -> bool:
    """A fixed tenth of everything that is composed and not listed."""
    return crc32(text.lower().encode()) % 10 == 0


class Lexicon:
    """The words of one split."""

    def __init__(self, split: Split = "train") -> None:
        held = split == "held"
        self.split = split
        self.names = HELD_NAMES if held else NAMES
        self.cities = HELD_CITIES if held else CITIES
        self.colours = HELD_COLOURS if held else COLOURS
        self.animals = HELD_ANIMALS if held else ANIMALS
        self.foods = HELD_FOODS if held else FOODS
        self.things = HELD_THINGS if held else THINGS
        self.places = HELD_PLACES if held else PLACES
        self.jobs = HELD_JOBS if held else JOBS
        self.hobbies = HELD_HOBBIES if held else HOBBIES
        self.adjectives = HELD_ADJECTIVES if held else ADJECTIVES
        held_plain = set(HELD_PLAIN)
        self.plain = HELD_PLAIN if held else [word for word in PLAIN if word not in held_plain]
        self.long_cities = HELD_LONG_CITIES if held else LONG_CITIES
        self.companies = HELD_COMPANIES if held else COMPANIES
        self.pieces = token_pieces()
        kinds = ("animals", "colours", "foods", "things", "places", "jobs", "hobbies", "adjectives")
        self.listed: dict[str, list[str]] = {kind: list(getattr(self, kind)) for kind in kinds}

    def refresh(self, rng: Random) -> None:
        """Puts new made-up words among the listed ones. Without them the model takes an animal, say, for one
        of fifty tokens, and stumbles over an animal of two tokens that it has never met."""
        for kind, words in self.listed.items():
            new = [
                self.pieced(rng) if rng.random() < 0.6 else self.made_up(rng, rng.choice((1, 2, 2, 3)))
                for _ in range(len(words))
            ]
            setattr(self, kind, words + new)

    def mine(self, text: str) -> bool:
        return is_held(text) == (self.split == "held")

    def made_up(self, rng: Random, n_syllables: int | None = None) -> str:
        """A word that exists nowhere, so that copying it needs the context."""
        while True:
            n = n_syllables or rng.choice((1, 2, 2, 2, 3, 3, 4))
            word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(n))
            if rng.random() < 0.12:
                word = rng.choice("aeiou") + word
            if len(word) > 2 and self.mine(word):
                return word

    def pieced(self, rng: Random) -> str:
        """One to four of the tokenizer's own tokens in a row, up to 12 letters. One in three opens
        with a letter alone: amber is a + mber, and such words are where copying slips."""
        while True:
            word = rng.choice(LETTERS) if rng.random() < 0.35 else ""
            word += "".join(rng.choice(self.pieces) for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4))))
            if 2 < len(word) <= 12 and self.mine(word) and word not in HELD_WORDS:
                return word

    def fresh(self, rng: Random) -> str:
        """A made-up word of either make. In training both: syllables alone leave most tokens
        unseen in a copy."""
        if self.split == "train" and self.pieces and rng.random() < 0.5:
            return self.pieced(rng)
        return self.made_up(rng)

    def name(self, rng: Random) -> str:
        if rng.random() < 0.16:
            return f"{rng.choice(self.names)} {self.fresh(rng).capitalize()}"
        return rng.choice(self.names) if rng.random() < 0.5 else self.fresh(rng).capitalize()

    def city(self, rng: Random) -> str:
        if rng.random() < 0.15:
            first = rng.choice("New San Los Port Saint Rio Santa Fort Hong Buenos Las".split())
            composed = f"{first} {self.fresh(rng).capitalize()}"
            return composed if rng.random() < 0.6 else rng.choice(self.long_cities)
        return rng.choice(self.cities) if rng.random() < 0.6 else self.fresh(rng).capitalize()

    def company(self, rng: Random) -> str:
        return rng.choice(self.companies) if rng.random() < 0.4 else self.fresh(rng).capitalize()

    def word(self, rng: Random) -> str:
        """Any single lower-case word: one in two is made up."""
        kind = rng.random()
        if kind < 0.5:
            return self.fresh(rng)
        if kind < 0.8:
            return rng.choice(self.plain)
        return rng.choice(rng.choice((self.things, self.animals, self.colours, self.foods, self.jobs)))

    def code(self, rng: Random) -> str:
        """Identifiers as people write them: AB-1234, x7k2, 48213, tango-9."""
        kind = rng.randrange(5)
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        if kind == 0:
            code = rng.choice(letters) + rng.choice(letters) + "-" + str(rng.randint(10, 9999))
        elif kind == 1:
            code = "".join(rng.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(rng.randint(4, 7)))
        elif kind == 2:
            code = str(rng.randint(100, 999999))
        elif kind == 3:
            code = f"{self.made_up(rng, 2)}-{rng.randint(1, 99)}"
        else:
            code = rng.choice(letters) + str(rng.randint(10, 999))
        return code

    def pair(self, rng: Random, low: int, high: int) -> tuple[int, int]:
        """Two numbers whose pair belongs to this split, in whichever order."""
        while True:
            a, b = rng.randint(low, high), rng.randint(low, high)
            if self.mine(f"{min(a, b)},{max(a, b)}"):
                return a, b
