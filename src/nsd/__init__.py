"""Nucleus speculative decoding."""
