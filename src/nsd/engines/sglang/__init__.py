"""NSD inside SGLang, as a plugin. KERNEL-TESTED ONLY: it has never run inside a whole SGLang engine.

What is tested: SGLang 0.5.23's own plugin registry applies the hooks, and its own Triton chain kernel, under Triton's
interpreter on a CPU, keeps what the hooks tell it to keep, with the law that follows. What is not: a served model, the
CUDA tree kernel, tensor parallelism, CUDA graphs. Read `plugin` first.
"""
