"""The tokenizer of the miniature: a few hundred whole words with their leading blank, single digits and characters.

What the two tasks write is one piece a word; anything else falls to pieces of one character. Saved as tokenizer.json,
it is read by transformers' AutoTokenizer.
"""

from __future__ import annotations

import itertools
import json
import re
import string
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from nsd.miniature import maths, programs
from nsd.miniature.words import ENDINGS, ONSETS

END, MASK, PAD = "<|end|>", "<|mask|>", "<|pad|>"
SPECIAL = (END, MASK, PAD)
PIECE = r' ?"""|\n *| ?[A-Za-z]+|_[a-z]+| ?[0-9]|[+\-*%=<>!]=| ?[^\sA-Za-z0-9_]| +|_'
"""What never spans two pieces: a word with one blank before it, one digit, a line break with its indent, a sign."""

SAMPLES = 1000
"""Texts of each task that the words are collected from; all words of the tasks occur many times in them."""


def build() -> Tokenizer:
    """The tokenizer, the same on every machine."""
    pieces = pieces_of_tasks()
    singles = [*(f" {d}" for d in string.digits), *string.printable[:-2]]
    vocabulary = [*SPECIAL, *dict.fromkeys([*singles, *pieces])]
    scored = [
        (piece, 0.0 if i < len(SPECIAL) else -1.0 if len(piece) > 1 else -3.0) for i, piece in enumerate(vocabulary)
    ]
    scored.append(("<|unk|>", 0.0))
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=len(scored) - 1))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (*SPECIAL, "<|unk|>")])
    return tokenizer


@cache
def pieces_of_tasks() -> tuple[str, ...]:
    """All words of the two tasks, in a fixed order; names fall into their syllables."""
    maths_texts = (s.prompt + s.solution for s in itertools.islice(maths.problems("train"), SAMPLES))
    code_texts = (c.sample.prompt + c.sample.solution for c in itertools.islice(programs.problems("train"), SAMPLES))
    found = {piece for text in (*maths_texts, *code_texts) for piece in re.findall(PIECE, text)}
    syllables = {f" {onset}" for onset in ONSETS} | set(ENDINGS)
    named = re.compile(f" ?({'|'.join(ONSETS)})({'|'.join(ENDINGS)})")
    return tuple(sorted({piece for piece in found if not named.fullmatch(piece)} | syllables))


def save(folder: Path) -> Tokenizer:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer = build()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "mask_token": MASK,
        "unk_token": "<|unk|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return tokenizer
