"""The words of the two tasks. Lists are ordered: the first phrasings are the ones that the house style prefers."""

from __future__ import annotations

ONSETS = ("Mar", "Jo", "Bel", "Tom", "Ra", "Sel", "Kim", "Nor", "Dan", "Li", "Pet", "An")
ENDINGS = ("ta", "ris", "no", "la", "mi", "das", "ke", "vin", "ra", "sen")

ITEMS = (
    "apples", "pens", "coins", "books", "shells", "cards", "eggs", "stamps",
    "rings", "seeds", "cups", "keys", "nuts", "bricks", "plums", "beads",
)  # fmt: skip

ASKED = {
    "add": (" Then{name} buys{a} more.", " A friend brings{a} more.", " Later{name} finds{a}."),
    "sub": (" Then{name} sells{a}.", " A friend takes{a} away.", " Later{name} loses{a}."),
    "packs": (" Then{name} buys{a} bags of{b}.", " A friend brings{a} boxes of{b}."),
    "double": (" Then the number doubles.", " Later there are twice as many."),
    "triple": (" Then the number triples.", " Later there are three times as many."),
    "half": (" Then{name} sells half.", " A friend takes half away."),
}
OPENINGS = (" {name} has{n} {items}.", " {name} owns{n} {items}.", " {name} starts with{n} {items}.")
QUESTIONS = (" How many {items} are there now?", " How many are left?")

TOLD = {
    "opener": (" First", " Now", " Then", " Next", " Well", " So", " Here", " Again", " Okay", " Right"),
    "subject": (" we", " they", " one", " you", " I", " someone", " everybody", " people"),
    "adverb": (" simply", " just", " clearly", " only", " carefully", " quickly", " of course", " must", " surely"),
    "add": (" add", " gain", " put in", " include", " collect", " count in", " receive", " join"),
    "sub": (" remove", " take off", " subtract", " drop", " lose", " cut", " deduct", " give up"),
    "packs": (" multiply", " bundle", " pack", " gather", " stack", " group", " pile up", " unpack"),
    "double": (" double", " copy", " repeat", " duplicate", " mirror", " take twice"),
    "triple": (" triple", " take thrice", " threefold", " stretch", " expand", " enlarge"),
    "half": (" halve", " split", " divide", " share", " cut in two", " part"),
    "link": (" so", " and thus", " which means", " because", " hence", " giving", " that is", " meaning", " since"),
    "close": (
        " in total", " by now", " at this point", " altogether", " for sure", " as a result", " in hand",
        " on the table", " so far", " again",
    ),
    "note": (" This", " That", " It", " The sum", " The count", " Everything", " The step", " The total"),
    "looks": (" looks", " seems", " is", " feels", " sounds", " stays", " appears", " remains"),
    "good": (" fine", " right", " good", " correct", " plain", " sound", " easy", " true", " clear"),
    "final": (" Answer:", " Finally", " In the end", " Overall", " The result:", " Altogether", " Thus"),
}  # fmt: skip

VERBS = ("get", "calc", "find", "make", "take", "work", "fetch", "give", "solve", "build")
NOUNS = ("_score", "_value", "_items", "_list", "_total", "_data", "_rows", "_marks", "_points", "_sizes")
ARGUMENTS = ("nums", "xs", "values", "items", "row", "data")

CODED = {
    "acc": ("total", "result", "out", "acc", "answer", "res", "value", "final", "found", "got", "goal", "end"),
    "each": ("x", "n", "v", "item", "num", "y", "e", "k", "i", "one", "each", "part"),
    "plan": (" walk", " go", " loop", " step", " run", " pass", " look", " move"),
    "over": (" over", " through", " along", " across", " past"),
    "all": (" all", " the", " these", " our", " those", " given"),
    "things": (" numbers", " entries", " elements", " members", " parts", " pieces"),
    "how": (
        " carefully", " in order", " in turn", " once", " slowly", " calmly", " quickly", " neatly", " from the left",
    ),
    "start": (" start", " begin", " set up", " prepare", " init", " open"),
    "keep": (" keep", " take", " use", " choose", " want", " allow", " pick", " accept"),
    "only": (" only", " just", " exactly", " solely", " merely"),
    "fit": (" fitting", " good", " wanted", " right", " valid", " proper", " suitable"),
    "turn": (" add", " put", " mix", " join", " work", " bring", " move"),
    "with": (" directly", " safely", " again", " along", " properly", " as asked", " into place"),
    "done": (" hand back", " return", " give back", " report", " send back", " yield"),
    "what": (" it", " them", " everything", " the result", " this", " that", " the outcome", " what we have"),
}  # fmt: skip
