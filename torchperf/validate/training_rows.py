"""Rows of measured training runs -> the model, plan and runtime that a row describes, and what it measured.

Seconds and bytes. A cell of the row stands before the map (training_map.toml); what neither gives is a reason to skip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ..frontend.modules.spec import ModelSpec
from ..graph.errors import TorchperfError
from ..graph.plan import Plan
from ..graph.validation import Skipped
from .cells import positive, whole
from .training_formulas import FORMULAS, Dims
from .training_map import Gpu, Setting, TrainingMap
from .training_models import dims_of, model_of, num_layers

COLUMNS = frozenset(
    {
        "model", "gpu", "num_gpus", "tp", "pp", "dp", "cp", "micro_batch", "global_batch", "seq_len", "precision",
        "recompute", "measured_step_time_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu",
        "measured_mfu", "measured_memory_gib_per_gpu", "notes",
    }
)  # fmt: skip
GIB = 2**30
_NEEDED = ("num_gpus", "tp", "pp", "seq_len", "micro_batch", "global_batch", "precision")


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row of the file with the blanks that the map fills, and the settings that hold for it, first to last."""

    id: str
    key: str
    spec: str
    cells: Mapping[str, str]
    settings: tuple[Setting, ...]
    gpu: Gpu | None

    def whole(self, name: str, otherwise: int = 0) -> int:
        """A cell as a whole number."""
        text = self.cells.get(name, "")
        return whole(text, name, least=0) if text else otherwise

    def number(self, name: str) -> float | None:
        """A cell as a number, None where it is blank."""
        text = self.cells.get(name, "")
        return positive(text, name) if text else None

    def last(self, name: str) -> str:
        """A text of the last setting that gives it."""
        return next((found for s in reversed(self.settings) if (found := getattr(s, name))), "")


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """One measured run.

    system          of the database; `network` and `nics_per_node` where the run had another network than it
    memory_kind     allocated | reserved | device
    step_time_s     measured; None where the row measured none, or its clock says nothing of the model
    memory_bytes    measured, of `memory_of`: the first or last stage of a pipeline, or the most loaded one
    spec            A: nothing guessed, B: a secondary knob is, C: a primary one
    assumptions     what the source does not state
    """

    id: str
    key: str
    model: ModelSpec
    params: float | None
    seq_len: int
    plan: Plan
    num_gpus: int
    gpu: str
    system: str
    gpus_per_node: int
    network: str
    nics_per_node: float
    precision: str
    runtime: str
    attention: str
    optimizer: str
    spec: str
    step_time_s: float | None
    memory_bytes: float | None
    memory_kind: str
    memory_of: str
    assumptions: tuple[str, ...]


def key_of(id: str) -> str:
    """The source of a row: its id without the number."""
    return re.sub(r"-\d+$", "", id)


def row_of(cells: Mapping[str, str], known: TrainingMap) -> TrainingRow:
    """The row, its blanks filled from the map."""
    key = key_of(cells["id"])
    settings = tuple(s for s in known.settings if _holds(s, key, cells))
    filled = dict(cells)
    for setting in reversed(settings):
        for name, value in setting.fills.items():
            if not filled.get(name):
                filled[name] = str(value)
    found = re.match(r"spec=([ABC])", cells.get("notes", ""))
    gpu = next((g for g in known.gpus if (not g.key or key in g.key) and _is(g.match, cells.get("gpu", ""))), None)
    return TrainingRow(cells["id"], key, found[1] if found else "", filled, settings, gpu)


def case_of(cells: Mapping[str, str], known: TrainingMap) -> TrainingCase | Skipped:
    """The case of a row of the file, or why there is none."""
    try:
        row = row_of(cells, known)
        return _case(row, known)
    except TorchperfError as error:
        return Skipped(cells["id"], error.message)
    except ValueError as error:
        return Skipped(cells["id"], f"a cell cannot be read: {error}")


def _case(row: TrainingRow, known: TrainingMap) -> TrainingCase:
    skip = row.last("skip")
    if skip:
        raise TorchperfError(skip)
    missing = [name for name in _NEEDED if not row.cells.get(name)]
    if missing:
        raise TorchperfError(f"the source states no {', '.join(missing)}")
    if row.gpu is None:
        raise TorchperfError(f"no accelerator of the database for `{row.cells['gpu']}`")
    runtime = row.last("runtime")
    if not runtime:
        raise TorchperfError(f"no runtime is mapped for `{row.key}`")
    num_gpus = row.whole("num_gpus")
    model = model_of(row, known)
    kind = row.last("memory")
    gib = row.number("measured_memory_gib_per_gpu")
    if gib is not None and not kind:
        raise TorchperfError(f"what memory `{row.key}` measured is not mapped")
    gib = None if kind == "none" else gib
    return TrainingCase(
        id=row.id,
        key=row.key,
        model=model,
        params=row.number("params_b"),
        seq_len=row.whole("seq_len"),
        plan=plan_of(row, model).resolved(num_gpus),
        num_gpus=num_gpus,
        gpu=row.gpu.name,
        system="" if num_gpus == 1 else row.gpu.system,
        gpus_per_node=row.gpu.domain or row.whole("gpus_per_node"),
        network=row.last("network"),
        nics_per_node=next((s.nics_per_node for s in reversed(row.settings) if s.nics_per_node), 0.0),
        precision=_word(row, "precision", "precisions", known.precisions),
        runtime=runtime,
        attention=row.last("attention") or "auto",
        optimizer=row.last("optimizer") or "adamw",
        spec=row.spec,
        step_time_s=None if row.last("untimed") else step_time(row, model),
        memory_bytes=None if gib is None else gib * GIB,
        memory_kind=kind,
        memory_of=row.last("memory_of"),
        assumptions=tuple(text for s in row.settings for text in s.assumes),
    )


def plan_of(row: TrainingRow, model: ModelSpec) -> Plan:
    """The plan of a row, not yet resolved."""
    chosen = {name: row.whole(name, 1) for name in ("tp", "pp", "cp", "ep")}
    given: dict[str, object] = {
        **chosen,
        "sequence_parallel": row.whole("sequence_parallel") == 1 and chosen["tp"] > 1,
        "virtual_stages": max(1, row.whole("vpp", 1)) if chosen["pp"] > 1 else 1,
        "dp": row.whole("dp"),
        "zero_stage": row.whole("fsdp"),
        "micro_batch": row.whole("micro_batch"),
        "global_batch": row.whole("global_batch"),
    }
    if not any("recompute" in setting.plan for setting in row.settings):
        given["recompute"] = _word(row, "recompute", "recomputes", {"": "none", "none": "none"})
    known = {field.name for field in fields(Plan)}
    for setting in row.settings:
        unknown = set(setting.plan) - known
        if unknown:
            raise TorchperfError(f"a plan has no `{', '.join(sorted(unknown))}` (training_map.toml)")
        given.update({k: tuple(v) if isinstance(v, list) else v for k, v in setting.plan.items()})
    plan = Plan(**given)  # type: ignore[arg-type]
    split = next((s.embedding_in_split for s in reversed(row.settings) if s.embedding_in_split is not None), False)
    if split and plan.pp > 1 and not plan.pp_split:
        return replace(plan, pp_split=split_with_ends(num_layers(model), plan.pp * plan.virtual_stages))
    if plan.pp > 1 and any(s.split_by_cost for s in row.settings):
        return replace(plan, pp_split=split_by_cost(dims_of(model, 1, 1), plan.pp))
    return plan


def split_with_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage where embedding and head count as a layer each; () where that is not even."""
    share, left = divmod(layers + 2, stages)
    if left or stages == 1:
        return ()
    return (share - 1, *([share] * (stages - 2)), share - 1)


def split_by_cost(dims: Dims, stages: int) -> tuple[int, ...]:
    """Layers of each stage where a block joins the stage at hand until their sum of products passes its even share.

    A layer counts 4 heads head_dim hidden + 3 ffn hidden, the head vocab hidden, the embedding nothing.
    Source: huggingface/nanotron, models/base.py (build_model) and models/llama.py (get_block_compute_costs)
    """
    layer = 4 * dims.heads * dims.head_dim * dims.hidden + 3 * dims.ffn * dims.hidden
    share = (dims.layers * layer + dims.vocab * dims.hidden) / stages
    sizes, stage = [0] * stages, 0
    for done in range(1, dims.layers + 1):
        sizes[stage] += 1
        stage += stage < stages - 1 and done * layer > (stage + 1) * share
    return tuple(sizes)


def step_time(row: TrainingRow, model: ModelSpec) -> float | None:
    """Seconds of a step: as measured, from tokens a second, or by the publisher's own formula for FLOPs."""
    seconds = row.number("measured_step_time_s")
    if seconds is not None:
        return seconds
    batch, seq, gpus = (row.whole(name) for name in ("global_batch", "seq_len", "num_gpus"))
    rate = row.number("measured_tokens_per_s_per_gpu")
    if rate is not None:
        return batch * seq / (gpus * rate)
    tflops, mfu = row.number("measured_tflops_per_gpu"), row.number("measured_mfu")
    if tflops is None and mfu is None:
        return None
    name = row.last("formula")
    if not name:
        raise TorchperfError("only FLOP/s are published, and the publisher's formula for FLOPs is not known")
    peak = next((s.peak for s in reversed(row.settings) if s.peak), 0.0)
    if tflops is None and not peak:
        raise TorchperfError("the peak that the published utilisation is of is not mapped")
    flops_per_s = (tflops if tflops is not None else peak * (mfu or 0.0)) * 1e12
    return FORMULAS[name](dims_of(model, batch, seq)) / (gpus * flops_per_s)


def _word(row: TrainingRow, cell: str, table: str, common: Mapping[str, str]) -> str:
    """A word of the row in our words."""
    text = row.cells.get(cell, "")
    for setting in reversed(row.settings):
        words: Mapping[str, str] = getattr(setting, table)
        if text in words:
            return words[text]
    if text not in common:
        raise TorchperfError(f"`{cell}` `{text}` of `{row.key}` is not mapped")
    return common[text]


def _holds(setting: Setting, key: str, cells: Mapping[str, str]) -> bool:
    return (
        key in setting.key
        and (not setting.ids or cells["id"] in setting.ids)
        and all(not (text := getattr(setting, n)) or _is(text, cells.get(n, "")) for n in ("model", "gpu", "precision"))
        and setting.note in cells.get("notes", "")
        and (not setting.table or _is(setting.table, cells.get("source_note", "")))
    )


def _is(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None
