"""NSD inside vLLM, as a plugin: vLLM loads `plugin.register` in every process, by the entry point of this package.

Read `plugin` first: it says what is hooked where, what makes it act, and what happens if something does not fit.
"""
