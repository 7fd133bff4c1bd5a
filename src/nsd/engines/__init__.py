"""NSD inside other people's engines. `relax` is the decision they share; each engine's room holds its hooks."""
