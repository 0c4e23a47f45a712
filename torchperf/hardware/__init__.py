"""Hardware and runtimes as data: hardware_db files -> checked nouns, each number with its reference."""

from .load import (
    accelerator_names,
    interconnect_names,
    load_accelerator,
    load_interconnect,
    load_runtime,
    load_system,
    runtime_names,
    single,
    system_for,
    system_names,
)

__all__ = [
    "accelerator_names",
    "interconnect_names",
    "load_accelerator",
    "load_interconnect",
    "load_runtime",
    "load_system",
    "runtime_names",
    "single",
    "system_for",
    "system_names",
]
