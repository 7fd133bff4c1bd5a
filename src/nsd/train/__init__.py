"""Training drafters for a target, on text that the target writes itself.

The order of work, one module each: prompts -> guard -> text (the target writes; its hidden states are stored meanwhile)
-> vocabulary -> net, losses, trainer -> export. Nothing but the command line imports this package.
"""
