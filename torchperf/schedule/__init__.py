"""Prices -> time of the step, and memory over the step."""
