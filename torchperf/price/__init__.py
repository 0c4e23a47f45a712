"""op + System + Runtime -> Price."""

from .pricer import Pricer, price

__all__ = ["Pricer", "price"]
