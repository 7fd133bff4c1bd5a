"""The prompt that mathematical tasks share."""

from __future__ import annotations

# Source: z-lab/dflash dflash/benchmark.py (DATASETS, gsm8k and math500); deepseek-ai/DeepSpec asks the same.
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def ask(question: str) -> str:
    """The user turn: the question, and on a new line how to answer."""
    return f"{question}\n{INSTRUCTION}"
