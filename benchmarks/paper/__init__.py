"""The paper's evaluation: one file for each experiment under configs/, one command for each file."""
