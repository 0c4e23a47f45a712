"""What some models need that transformers' own code or defaults do not give, by model type or by module class.

configs    values that a config must have and its default leaves out
inputs     arguments of forward that no other model takes
experts    experts in a loop over the data of a tensor -> grouped products over the rows that are routed
scans      recurrences in a loop over the sequence -> one op, as the kernels that engines run
modules    what a forward computes on the host, in another dtype, or not at all on the meta device

Whatever is changed is told in the assumptions of the capture.
"""

from .configs import attention_of, class_without_packages, config_of_cache, filled, part_for
from .inputs import add_inputs, rows_of
from .overrides import install, notes

__all__ = [
    "add_inputs", "attention_of", "class_without_packages", "config_of_cache", "filled", "install", "notes", "part_for",
    "rows_of",
]  # fmt: skip
