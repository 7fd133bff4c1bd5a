"""What reaches a terminal: five colours where there are colours, plain text elsewhere, never a control sequence."""

import io

import pytest
from rich.console import Console

from nsd.cli.render import show_block
from nsd.events import Block, Committed, Origin, Timing


def block(text, rejected=""):
    committed = (Committed(1, Origin.RESCUED, text), Committed(2, Origin.RECOVERED, " new"))
    return Block(0, 1, 0, (), (), None, committed, rejected, False, False, None, Timing(0, 0, 0, 0), 1, 0.0)


def shown(one, **settings):
    console = Console(file=io.StringIO(), **settings)
    show_block(console, one)
    return console.file.getvalue()


def test_colours_mark_states_and_strike_what_was_rejected():
    text = shown(block("kept", " old"), force_terminal=True, color_system="standard")
    assert "kept" in text and " old" in text and " new" in text
    assert "\x1b[9;31m" in text


@pytest.mark.parametrize(
    "settings",
    [
        {"force_terminal": False},
        {"force_terminal": True, "no_color": True},
        {"force_terminal": True, "color_system": None},
    ],
)
def test_without_colours_there_is_the_text_and_nothing_else(settings):
    assert shown(block("kept", " old"), **settings) == "kept new"


def test_a_model_cannot_send_control_sequences_to_a_terminal():
    evil = "\x1b[2J\x1b]0;owned\x07[red]\x9b31m"
    for settings in ({"color_system": "standard"}, {"no_color": True}):
        text = shown(block(evil, evil), force_terminal=True, **settings)
        assert "\x1b[2J" not in text and "\x1b]0" not in text and "\x9b" not in text
        assert "[red]" in text
    # A pipe gets the bytes as they are.
    assert shown(block(evil), force_terminal=False) == evil + " new"
