"""Where training text starts: task templates filled at random, a file of one's own, and prompts that stay held out.

The built-in source needs no download. Its held-out prompts (heldout.jsonl) were written by hand and share no topic with
the slots below. The runs between slots are short, so that no template holds a 13-gram of its own.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from nsd.errors import ConfigError

HELD_OUT_SHARE = 0.05
"""Share of a file of one's own that is set aside, by the hash of each prompt."""

_SLOTS: dict[str, tuple[str, ...]] = {
    "topic": tuple(
        [
            "bees",
            "bread",
            "steam engines",
            "the moon",
            "glass",
            "volcanoes",
            "chess",
            "tea",
            "bridges",
            "whales",
            "paper",
            "salt",
            "clocks",
            "deserts",
            "maps",
            "bicycles",
            "rice",
            "earthquakes",
            "lighthouses",
            "coffee",
            "copper",
            "forests",
            "kites",
            "dreams",
            "sleep",
            "trains",
            "cheese",
            "rainbows",
            "ants",
            "horses",
            "silk",
            "dolphins",
            "mirrors",
            "gold",
            "libraries",
            "hospitals",
            "cotton",
            "penguins",
            "tides",
            "magnets",
            "canals",
            "apples",
            "spiders",
            "the human heart",
            "elections",
            "inflation",
            "vaccines",
            "batteries",
            "satellites",
            "democracy",
            "photosynthesis",
            "gravity",
            "friendship",
            "patience",
            "the Roman army",
            "Ancient Egypt",
            "the printing press",
            "the stock market",
            "recycling",
            "solar panels",
            "jazz",
            "the Olympic Games",
            "mountain climbing",
            "public transport",
            "computer networks",
            "databases",
            "machine learning",
        ]
    ),
    "person": tuple(
        [
            "my teacher",
            "my landlord",
            "a neighbour",
            "my grandmother",
            "a new colleague",
            "the mayor",
            "my boss",
            "an old friend",
            "a customer",
            "the school director",
            "my doctor",
            "a pen friend",
            "the bank",
            "the hotel manager",
            "my sister",
            "a job applicant",
        ]
    ),
    "reason": tuple(
        [
            "a broken heater",
            "a birthday party",
            "a late delivery",
            "a lost key",
            "a wrong bill",
            "an upcoming move",
            "a job offer",
            "a noisy street",
            "a borrowed book",
            "a cancelled flight",
            "a school trip",
            "a new puppy",
            "a wedding",
            "a long illness",
            "a change of address",
            "a missed appointment",
            "a generous gift",
            "a damaged parcel",
        ]
    ),
    "name": tuple(
        [
            "Anna",
            "Ben",
            "Carla",
            "David",
            "Emma",
            "Farid",
            "Grace",
            "Hugo",
            "Ines",
            "Jack",
            "Kim",
            "Liam",
            "Mona",
            "Nora",
            "Omar",
            "Paula",
        ]
    ),
    "thing": tuple(
        [
            "pencils",
            "oranges",
            "marbles",
            "stamps",
            "cookies",
            "tickets",
            "shells",
            "books",
            "coins",
            "balloons",
            "eggs",
            "cards",
            "stickers",
            "roses",
            "sandwiches",
            "bottles",
            "chairs",
            "tiles",
        ]
    ),
    "code": tuple(
        [
            "reverses a string",
            "sums a list of numbers",
            "counts the vowels in a text",
            "finds the largest number in a list",
            "removes duplicates from a list",
            "checks whether a number is prime",
            "converts Celsius to Fahrenheit",
            "merges two sorted lists",
            "counts the words in a file",
            "checks whether a string is a palindrome",
            "computes a factorial",
            "sorts a dictionary by value",
            "flattens a nested list",
            "rolls two dice",
            "prints a multiplication table",
            "finds the second smallest value",
            "computes the average of a column",
            "splits a list into chunks",
            "validates an email address",
            "draws a triangle of stars",
            "reads a CSV file",
            "binary searches a sorted list",
            "computes the greatest common divisor",
            "shuffles a deck of cards",
        ]
    ),
    "language": tuple(["Python", "JavaScript", "Java", "C", "Go", "TypeScript", "Rust"]),
    "place": tuple(
        [
            "Lisbon",
            "Kyoto",
            "a small village",
            "the seaside",
            "Rome",
            "the mountains",
            "New York",
            "a farm",
            "Cairo",
            "a space station",
            "Berlin",
            "an island",
            "Sydney",
            "a rainforest",
            "Paris",
            "a castle",
            "Chicago",
            "the North Pole",
        ]
    ),
    "dish": tuple(
        [
            "pancakes",
            "vegetable soup",
            "fried rice",
            "an omelette",
            "a fruit salad",
            "tomato pasta",
            "lentil curry",
            "roast potatoes",
            "banana bread",
            "tacos",
            "mushroom risotto",
            "a cheese sandwich",
            "pumpkin pie",
            "a chocolate cake",
        ]
    ),
    "style": tuple(
        [
            "more formal",
            "shorter",
            "friendlier",
            "clearer",
            "more polite",
            "simpler",
            "more exciting",
            "in the past tense",
            "as a question",
            "for a child",
            "without adjectives",
            "as a headline",
        ]
    ),
    "sentence": tuple(
        [
            "The meeting was moved because nobody could find the room.",
            "I can't come tomorrow, my car is broken.",
            "Our shop sells shoes that are good and also cheap.",
            "The dog ran over the field and it barked a lot.",
            "We regret that your order is late.",
            "He said that he don't like the weather here.",
            "The film was long but the end was really surprising.",
            "Please send me the report when you have time.",
            "It rained all day, so the children played inside.",
            "The new phone is fast, and its battery lasts long.",
            "She opened the window since the room was hot.",
            "They has been working here since five years.",
            "The museum is closed on Mondays and on holidays.",
            "Nobody knew the answer, not even the teacher.",
            "You must not park in front of the gate.",
            "The soup tasted strange, but we ate it anyway.",
        ]
    ),
    "word": tuple(
        [
            "happy",
            "quick",
            "important",
            "cold",
            "difficult",
            "quiet",
            "brave",
            "bright",
            "angry",
            "strange",
            "small",
            "honest",
            "lazy",
            "gentle",
        ]
    ),
    "n": tuple(["3", "4", "5", "6", "7", "8", "10"]),
}

_TEMPLATES: dict[str, tuple[str, ...]] = {
    "problem": (
        "{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?",
        "A box holds {a} {thing}. How many {thing} are in {b} boxes?",
        "{name} gives away {b} of {a} {thing}. How many are left?",
        "{name} reads {b} pages a day. How long does a book of {a} pages take?",
        "A ticket costs {b} dollars. {name} buys {n} and pays with {a} dollars. What is the change?",
        "A train travels {a} kilometres in {n} hours. What is its average speed?",
        "What is {a} plus {b}, and what is {a} times {n}? Show the steps.",
        "{n} friends share {a} {thing} equally. How many does each get, and how many remain?",
    ),
    "code": (
        "Write a {language} function that {code}.",
        "Show me how a {language} program {code}. Add comments.",
        "Write a short {language} program which {code}, and explain it.",
        "Write unit tests for a {language} function that {code}.",
    ),
    "list": (
        "List {n} facts about {topic}.",
        "Give me {n} reasons to learn about {topic}.",
        "Name {n} things one needs for {dish}.",
        "List {n} ideas for a weekend in {place}.",
        "Give me {n} synonyms for the word {word}.",
        "What are {n} common mistakes in writing about {topic}?",
        "Make a packing list for a trip to {place}.",
    ),
    "rewrite": (
        "Rewrite this sentence so that it is {style}: {sentence}",
        "Correct the grammar: {sentence}",
        "Say this in other words: {sentence}",
        "Make this text {style}. {sentence}",
    ),
    "letter": (
        "Write a short letter to {person} about {reason}.",
        "Write an email to {person}. The subject is {reason}.",
        "Write a thank-you note to {person} after {reason}.",
        "Draft a polite complaint to {person} because of {reason}.",
    ),
    "explain": (
        "Explain {topic} to a child.",
        "What is the history of {topic}?",
        "Why do people care about {topic}?",
        "Write one paragraph about {topic}.",
        "How does one make {dish}? Give the steps.",
        "Compare {topic} and {topic}.",
        "What would you ask an expert on {topic}?",
    ),
    "story": (
        "Tell a short story about {name}, set in {place}.",
        "Write a poem about {topic}.",
        "Write a dialogue between {name} and {name} about {topic}.",
        "Describe a morning in {place}.",
    ),
}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Prompts that no training text may touch; digest names them in a card."""

    prompts: tuple[str, ...]

    @property
    def digest(self) -> str:
        """sha256 over the hashes of all prompts, in order."""
        return hashlib.sha256("\n".join(fingerprint(prompt) for prompt in self.prompts).encode()).hexdigest()


def fingerprint(prompt: str) -> str:
    """sha256 of one prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def built_in_held_out() -> HeldOut:
    """The hand-written held-out prompts: eight of each kind."""
    text = (files("nsd.train") / "heldout.jsonl").read_text(encoding="utf-8")
    return HeldOut(tuple(json.loads(line)["prompt"] for line in text.splitlines()))


def fill(chance: random.Random) -> str:
    """One task from the templates."""
    text = chance.choice(_TEMPLATES[chance.choice(sorted(_TEMPLATES))])
    b = chance.randint(2, 30)
    text = text.replace("{a}", str(b + chance.randint(5, 170))).replace("{b}", str(b))
    for slot, values in _SLOTS.items():
        fixed = chance.choice(values) if slot == "n" or slot == "thing" else None
        while "{" + slot + "}" in text:
            text = text.replace("{" + slot + "}", fixed or chance.choice(values), -1 if fixed else 1)
    return text


def read_prompts(path: Path) -> list[str]:
    """Prompts from a JSONL file: a string, or an object with `prompt` or `text`, per line. Raises ConfigError."""
    prompts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path} ({problem}), wanted JSONL with one prompt per line") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as problem:
            raise ConfigError(f"{path}:{number} is not JSON ({problem}), wanted a line such as {{...}}") from None
        if isinstance(value, dict):
            value = value.get("prompt", value.get("text"))
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f'{path}:{number} holds no prompt, wanted a string or {{"prompt": "..."}}')
        prompts.append(value)
    if not prompts:
        raise ConfigError(f"{path} holds no prompts, wanted one per line")
    return prompts


def set_aside(prompts: Sequence[str], share: float = HELD_OUT_SHARE) -> tuple[list[str], HeldOut]:
    """Split a file of one's own: a prompt is held out by its own hash, at least one; the order does not matter."""
    limit = int(share * 16**8)
    ordered = sorted(set(prompts), key=fingerprint)
    count = max(sum(int(fingerprint(prompt)[:8], 16) < limit for prompt in ordered), 1)
    if len(ordered) < 2:
        raise ConfigError(f"got {len(ordered)} different prompts, wanted at least 2: one trains, one is held out")
    return ordered[count:], HeldOut(tuple(ordered[:count]))
