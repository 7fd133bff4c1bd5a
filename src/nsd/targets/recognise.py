"""Telling targets with modelling of their own apart by their config.json; light, so that asking loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEMOTRON = "nemotron_labs_diffusion"


def is_nemotron(config: Mapping[str, Any]) -> bool:
    """Nemotron-Labs-Diffusion, the text model, by its model type or class name."""
    return config.get("model_type") == NEMOTRON or "NemotronLabsDiffusionModel" in (config.get("architectures") or ())
