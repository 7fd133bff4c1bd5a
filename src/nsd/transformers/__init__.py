"""transformers' own `generate`, decoding by this project's loop and rules.

    model.generate(**inputs, custom_generate=nsd.transformers.generate, assistant_model=small, theta=0.95)

The generation config, logits processors, stopping criteria, streamers and output flags of that call are honoured, for
batches of several prompts too; what cannot be is refused by name.
Source: transformers 5.24 src/transformers/generation/utils.py, `GenerationMixin.generate` (how a callable is called).
"""

from __future__ import annotations

from nsd.transformers.generate import generate
from nsd.transformers.output import NSDOutput

__all__ = ["NSDOutput", "generate"]
