"""What a recorder writes: a tape of ops, every number on it a slot, so that tapes of several sizes line up.

For each op the tape holds a key (op, phase and the structure of its arguments), the module, and its numbers: for a
tensor its dims, strides, offset and storage bytes; for an argument its value. Two captures of one model at two sizes
have the same keys and differ only in slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[object, ...]


@dataclass(slots=True)
class Tape:
    """Ops in the order they ran. Index lists have one entry more than there are ops.

    keys, modules   one an op: interned key, interned module path
    slots           numbers of all ops; op i owns slots[slot_start[i]:slot_start[i+1]]
    storages        storage id of every tensor; op i owns storages[tensor_start[i]:tensor_start[i+1]]
    kinds, names    of each storage id
    """

    keys: list[Key] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    slots: list[int | float] = field(default_factory=list)
    slot_start: list[int] = field(default_factory=lambda: [0])
    storages: list[int] = field(default_factory=list)
    tensor_start: list[int] = field(default_factory=lambda: [0])
    kinds: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)  # parameters that got a gradient; several may share a storage
    unattributed: int = 0
    guesses: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def phase(self, i: int) -> str:
        return str(self.keys[i][1])


# A key is (op name, phase, *entries); an entry is one of
#   ("T", argument, ndim, dtype)   a tensor: ndim dims, ndim strides, offset, storage bytes: 2 ndim + 2 slots
#   ("O", "", ndim, dtype)         the same for an output
#   ("I", argument)  ("F", argument)   an integer, a float: one slot
#   ("C", argument, value)         anything that does not depend on sizes: bool, str, None
#   ("(", argument, n)             a tuple: its n items follow
