"""The paper's evaluation as one command: tasks, scoring, arms, metrics, runs and reports."""
