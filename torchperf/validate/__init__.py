"""Measured rows beside our prices."""
