"""Measurements, run by hand: ratios inside one run, with machine, date and versions printed."""
