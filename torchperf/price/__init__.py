"""op + System + Runtime -> Price."""

from .roofline import Pricer, price

__all__ = ["Pricer", "price"]
