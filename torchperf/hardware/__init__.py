"""Hardware and runtimes as data: hardware_db files -> checked nouns, each number with its reference."""

from .check import check_file
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
    "check_file",
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
