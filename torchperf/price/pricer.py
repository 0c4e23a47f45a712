"""One price for any op: which formula an op takes, by its kind.

matmul, convolution   matmul.py (a convolution is the product that it is lowered to)
attention             attention.py; in a ring, ring.py
collective            collective.py; a send_recv is as slow as the hop between nodes, where its ring has one
view                  nothing
everything else       memory_bound.py: bytes, with the vector engine's arithmetic beside them
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.op import Op
from ..graph.plan import per_node
from ..graph.price import Price, Term
from ..graph.runtime import Runtime
from ..graph.system import System
from ..graph.work import Work
from . import attention, matmul, memory_bound, ring
from .collective import collective

NOTHING = Price(0.0, "none")


class Pricer:
    """Prices on one system under one runtime; equal work is priced once.

    sustained   steady clocks, as in a training step; else short bursts, as a benchmark of one kernel sees them
    """

    def __init__(self, system: System, runtime: Runtime, sustained: bool = True) -> None:
        self.system = system
        self.runtime = runtime
        self._matmul = matmul.Pricer(system.accelerator, sustained=sustained)
        self._known: dict[tuple[Work, bool], Price] = {}

    def __call__(self, op: Op, work: Work) -> Price:
        """Device time of `op`, whose work is `work`. Raises TorchperfError where the device lacks the dtype.

        An attribute `load` is the work of the most loaded rank over the mean: the time is that rank's.
        """
        backward = "backward" in op.name
        key = (work, backward)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._price(work, backward)
        load = op.attr("load")
        return known if load is None else times(known, float(load), "load")

    def _price(self, work: Work, backward: bool) -> Price:
        if work.nbytes == 0 and work.flops_executed == 0:
            return NOTHING
        if work.kind == "collective":
            return self._collective(work)
        if work.kind == "matmul" and _is_product(work):
            return self._matmul(work)
        if work.kind == "convolution" and _is_product(work):
            return self._matmul(replace(work, kind="matmul"))
        if work.kind == "attention" and work.dims:
            device = self.system.accelerator
            one = ring if "ring" in dict(work.dims) else attention
            slower = self.runtime.attention_slowdown(device.architecture, backward)
            price = one.price(work, device, backward_pass=backward)
            return price if slower is None else times(price, slower.value, "slowdown")
        return memory_bound.price(work, self.system.accelerator)

    def _collective(self, work: Work) -> Price:
        dims = dict(work.dims)
        ranks, nbytes = dims["ranks"], float(dims["nbytes"])
        inside = per_node(ranks, dims.get("stride", 1), self.system.num_accelerators)
        if work.equation == "send_recv":
            if ranks < 2:
                return NOTHING
            hop = collective("p2p", nbytes, 2, self.system, per_node=2 if inside >= ranks else 1)
            return times(hop, dims["steps"], "steps")
        serving = self.runtime.serving
        if serving is None or work.equation != "all_reduce":
            return collective(work.equation, nbytes, ranks, self.system, per_node=inside)
        found = collective("all_reduce", nbytes, ranks, self.system, library=serving.all_reduce, per_node=inside)
        return later(found, serving.all_reduce_factor)


def times(price: Price, factor: float, name: str) -> Price:
    """The price of `factor` as much, one after the other; `name` is what the formulas call the factor."""
    terms = tuple(
        replace(
            term, seconds=term.seconds * factor, formula=_scaled(term.formula, name),
            inputs=(*term.inputs, (name, float(factor))),
        )
        for term in price.terms
    )  # fmt: skip
    return Price(price.seconds * factor, price.bound, terms)


def _scaled(formula: str, name: str) -> str:
    body, colon, remark = formula.partition(":")
    return f"{name} ({body}){colon}{remark}"


def later(price: Price, factor: float) -> Price:
    """The price with its latency terms `factor` times as long."""
    latency = sum(term.seconds for term in price.terms if term.name.endswith("latency"))
    if factor == 1 or not latency:
        return price
    extra = (factor - 1) * latency
    given = (("all_reduce_factor", factor), ("latency", latency))
    term = Term("runtime", extra, "(all_reduce_factor - 1) latency", inputs=given)
    return Price(price.seconds + extra, price.bound, (*price.terms, term))


def _is_product(work: Work) -> bool:
    return {"m", "n", "k"} <= {name for name, _ in work.dims}


def price(op: Op, work: Work, system: System, runtime: Runtime) -> Price:
    """Device time of one op, alone. For many, keep a `Pricer`."""
    return Pricer(system, runtime)(op, work)
