"""Proposal mechanisms: where drafted tokens and their law come from."""
