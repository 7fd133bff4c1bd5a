"""Tasks small enough to train a language model for them in minutes: text generators, held-out splits, a tokenizer.

Pure Python, but for the tokenizer; the models are trained by `python -m benchmarks.miniature`.
"""
