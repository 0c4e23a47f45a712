"""The table from operator names to rules, and the one function that the other rooms call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torchperf.graph.errors import TorchperfError
from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .traffic import read, written

Rule = Callable[[Op], Work]

KINDS = (
    "matmul", "convolution", "attention", "norm", "softmax", "loss", "pointwise", "dropout", "reduction",
    "scan", "collective", "solve", "gather", "copy", "sort", "pooling", "create", "view", "quantise",
    "optimizer", "unknown",
)  # fmt: skip

RULES: dict[str, Rule] = {}
_FOUND: dict[str, Rule] = {}  # lookups already made, by full name


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under packet names ("aten.sum") or overload names ("aten.sum.dim_IntList").

    Raises ValueError where a name has a rule already.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"`{name}` has a rule already: {RULES[name].__module__}")
            RULES[name] = function
        _FOUND.clear()
        return function

    return register


def aten(names: str | Iterable[str]) -> list[str]:
    """Full packet names of a table column: "mm bmm" -> ["aten.mm", "aten.bmm"]."""
    return [f"aten.{name}" for name in (names.split() if isinstance(names, str) else names)]


def work(op: Op) -> Work:
    """What `op` has to do; `op` is bound, so every dim is an int.

    An op without a rule comes back with kind "unknown", its bytes, and known=False. Raises TorchperfError where the op
    has not the operands, dims or arguments that its rule goes by.
    """
    found = _FOUND.get(op.name)
    if found is None:
        found = _FOUND[op.name] = lookup(op.name) or unknown
    try:
        return found(op)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise _not_of_its_form(op, error) from error


def _not_of_its_form(op: Op, error: Exception) -> TorchperfError:
    shapes = ", ".join(f"{name}{list(value.shape)}" for name, value in zip(op.operands, op.inputs, strict=False))
    return TorchperfError(
        f"op `{op.name}` is not of the form that its rule knows",
        facts=[
            ("in", op.module or "(no module)"), ("given", shapes or "no tensor"),
            ("reason", f"{type(error).__name__}: {error}"),
        ],
        hint="capture the model again; if that gives the same op, `--debug` shows where, and please report it",
    )  # fmt: skip


def lookup(name: str) -> Rule | None:
    """The rule of an op, or None: by a fused kernel's prefix, overload, packet, or out-of-place twin.

    An `out` overload has its packet's rule without the `out` operand, which is written and not read.
    """
    if name.startswith("torchperf.fused"):
        return RULES.get("torchperf.fused")
    if name in RULES:
        return RULES[name]
    packet, overload = name, ""
    while "." in packet:
        packet, _, last = packet.rpartition(".")
        overload = overload or last
        found = RULES.get(packet)
        if found is None and packet.endswith("_") and not packet.endswith("__"):
            found = RULES.get(packet[:-1])
        if found is not None:
            return _without_out(found) if overload == "out" or overload.endswith("_out") else found
    return None


def unknown(op: Op) -> Work:
    """No rule.

    flops    not known, 0 stands for it        read    each distinct input        write    outputs
    """
    dtype = op.outputs[0].dtype if op.outputs else op.inputs[0].dtype if op.inputs else "fp32"
    return Work("unknown", "none", dtype, bytes_read=read(op), bytes_written=written(op), known=False)


def _without_out(found: Rule) -> Rule:
    def out_rule(op: Op) -> Work:
        kept = [i for i, name in enumerate(op.operands) if name != "out"]
        inputs = tuple(op.inputs[i] for i in kept)
        return found(replace(op, operands=tuple(op.operands[i] for i in kept), inputs=inputs))

    return out_rule
