"""training_map.toml: what the sources of the measured runs state beside their tables, each entry with its citation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from .map_file import broken, read
from .training_formulas import FORMULAS

FILE = Path(__file__).with_name("training_map.toml")
Text = Annotated[str, msgspec.Meta(min_length=1)]
_REGEXES = ("match", "model", "gpu", "precision")


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as a source names it (a regular expression), and the accelerator of the database that it is.

    key      sources that it is meant for; () for all
    system   the system of the database it sits in
    domain   GPUs that one scale-up link joins, where that is more than a node
    """

    match: Text
    name: Text
    system: Text
    source: Text
    key: tuple[str, ...] = ()
    domain: int = 0


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as a source names it (a regular expression), and its class and dims.

    kind     transformers | gpt
    config   of a config.json, or the fields of frontend.modules.gpt.Gpt; what it leaves out comes from the row
    mtp      layers of multi-token prediction
    leave    cells of the row that mean something else here
    """

    match: Text
    kind: Text
    config: dict[str, Any]
    source: Text
    mtp: int = 0
    leave: tuple[str, ...] = ()
    key: tuple[str, ...] = ()


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for the rows of `key` that meet every condition given; a later entry stands before an earlier one.

    model, gpu, precision   regular expressions over the row's cells; note: a text in its notes; ids: rows
    table       regular expression over the source's own place, `source_note`
    fills       cells of the row that it leaves blank, by the column's name; a cell that is not blank stands
    plan        fields of the Plan
    config      dims of the model
    recomputes  the row's word for recompute -> that of a Plan
    precisions  the row's word for precision -> ours
    formula     what turns TFLOP/s or MFU into seconds; `peak` is the TFLOP/s that an MFU is of
    memory      allocated | reserved | device | none: measured of something that we do not build
    memory_of   first | last: the pipeline stage whose memory was read; otherwise the most loaded one
    embedding_in_split  the layers are split as if embedding and head were one more layer each
    split_by_cost  layers go to the stages by products of layers and head, as nanotron's build_model deals them out
    skip        why these rows are not built
    untimed     why their time says nothing
    assumes     what is assumed, told with the row
    """

    key: tuple[str, ...]
    source: Text
    model: str = ""
    gpu: str = ""
    precision: str = ""
    note: str = ""
    table: str = ""
    ids: tuple[str, ...] = ()
    runtime: str = ""
    attention: str = ""
    optimizer: str = ""
    fills: dict[str, str | int] = {}
    plan: dict[str, Any] = {}
    config: dict[str, Any] = {}
    mtp: int | None = None
    vocab_multiple: int | None = None
    recomputes: dict[str, str] = {}
    precisions: dict[str, str] = {}
    formula: str = ""
    peak: float = 0.0
    memory: str = ""
    memory_of: str = ""
    embedding_in_split: bool | None = None
    split_by_cost: bool | None = None
    network: str = ""
    nics_per_node: float = 0.0
    skip: str = ""
    untimed: str = ""
    assumes: tuple[str, ...] = ()


class TrainingMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    precisions: dict[str, str]
    gpus: tuple[Gpu, ...]
    models: tuple[Model, ...]
    settings: tuple[Setting, ...]

    def faults(self) -> list[str]:
        """What the types cannot say: broken regular expressions, unknown formulas, entries that say nothing."""
        tables = (("gpus", self.gpus), ("models", self.models), ("settings", self.settings))
        faults = list(broken(tables, _REGEXES))
        for i, setting in enumerate(self.settings):
            if not setting.key:
                faults.append(f"settings[{i}].key: names no source")
            if setting.formula and setting.formula not in FORMULAS:
                faults.append(f"settings[{i}].formula: no `{setting.formula}`, one of {', '.join(FORMULAS)}")
            if setting.memory not in ("", "allocated", "reserved", "device", "none"):
                faults.append(f"settings[{i}].memory: `{setting.memory}` is not allocated, reserved, device or none")
            if setting.memory_of not in ("", "first", "last"):
                faults.append(f"settings[{i}].memory_of: `{setting.memory_of}` is not first or last")
            if setting.attention not in ("", "auto", "flash", "unfused"):
                faults.append(f"settings[{i}].attention: `{setting.attention}` is not auto, flash or unfused")
        return faults


def load_map(path: Path = FILE) -> TrainingMap:
    """The map; raises TorchperfError that names the file and the key at fault."""
    return read(path, TrainingMap)
