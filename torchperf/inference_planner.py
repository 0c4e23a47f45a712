"""Forward passes of one model on one engine, priced: prefill, decode and extend at any batch and length.

planner = InferencePlanner(bind, system, runtime, precision, plan)
planner.prefill(8, 2048).seconds
planner.decode(8, 4096).seconds
planner.generate(8, Request(2048, 500)).latency

A batch is of one engine: attention-DP groups share it out evenly, and so do the micro-batches that fill a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .annotate import work as work_of
from .graph.errors import TorchperfError
from .graph.graph import Facts, Graph
from .graph.inference import InferencePlan, InferencePrecision, Request, Served
from .graph.inference_runtime import Serving
from .graph.op import Op
from .graph.plan import per_node
from .graph.runtime import Runtime
from .graph.system import System
from .graph.tensor import Value
from .graph.work import Work, Works
from .inference_cost import Stage, StageCost, StepCost, between, cost, launches_of
from .inference_kernels import works_of
from .inference_program import local_program, stages
from .partition.stages import Chunk
from .price import Pricer
from .price.collective import collective
from .schedule.serving_sum import summed

Bind = Callable[[str, Mapping[str, int]], Graph]  # (mode, sizes) -> the bound graph
Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A rank's stages of one mode at one set of sizes, a micro-batch each."""

    stages: tuple[Stage, ...]
    facts: Facts


@dataclass(slots=True)
class InferencePlanner:
    """Prices forward passes; what they share, programs and prices, is worked out once."""

    bind: Bind
    system: System
    runtime: Runtime
    precision: InferencePrecision = field(default_factory=InferencePrecision)
    plan: InferencePlan = field(default_factory=InferencePlan)
    pricer: Pricer = field(init=False)
    serving: Serving = field(init=False)
    _lowered: dict[tuple[str, Sizes], Lowered] = field(default_factory=dict)
    _curves: dict[tuple[int, int, int], DecodeCurve] = field(default_factory=dict)
    _costs: dict[tuple[str, Sizes], StepCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.runtime.serving is None:
            raise TorchperfError(
                f"runtime `{self.runtime.name}` does not say how it serves",
                facts=[("where", f"{self.runtime.file}: serving")],
                hint="choose tensorrt-llm, vllm, lmdeploy, gpt-fast, fastertransformer, llama-cpp or "
                "transformers-eager",
            )
        self.serving = self.runtime.serving
        self.pricer = Pricer(self.system, self.runtime)

    def prefill(self, batch: int, seq: int) -> StepCost:
        """`batch` prompts of `seq` tokens at once, to their first token."""
        return self._pass("prefill", batch, {"seq": seq})

    def extend(self, batch: int, seq: int, kv: int) -> StepCost:
        """`seq` more tokens of each of `batch` sequences behind `kv` that are cached."""
        return self.prefill(batch, seq) if kv == 0 else self._pass("extend", batch, {"seq": seq, "kv": kv})

    def decode(self, batch: int, kv: int) -> StepCost:
        """One token of each of `batch` sequences behind `kv` that are cached."""
        return self._pass("decode", batch, {"kv": kv})

    def generate(self, batch: int, request: Request) -> Served:
        """A static batch: all prompts at once, then every token of all of them, in closed form."""
        first = self.first(batch, request)
        steps = self.decode_seconds(batch, request)
        latency = first + steps
        tpot = steps / (request.output_len - 1) if request.output_len > 1 else 0.0
        curve_end = request.total - 2
        worst = self.decoding(batch, curve_end, request) if request.output_len > 1 else 0.0
        rate = batch * request.output_len / latency
        return Served(first, tpot, latency, worst, rate, batch, batch, first / latency, batch / latency)

    def first(self, batch: int, request: Request) -> float:
        """Seconds of the pass that makes the first token, with what is cached of the prompt left out."""
        return self.extend(batch, request.input_len - request.known, request.known).seconds

    def decode_seconds(self, batch: int, request: Request) -> float:
        """Seconds of all tokens but the first."""
        low, high = request.input_len, request.total - 2
        if high < low:
            return 0.0
        curve = self.curve(batch, low, high)
        total = summed(lambda kv: self.decoding(batch, kv, request), low, high, curve.breaks)
        return total / request.tokens_per_step

    def decoding(self, batch: int, kv: int, request: Request | None = None) -> float:
        """Seconds of one decode step from the curve through this length; with drafts, of the pass that checks them.

        A check of k drafts runs k + 1 tokens of each sequence through every product, and reads the cache once.
        """
        curve = self.curve(batch, kv, kv)
        step = curve.at(kv)
        if request is None or not request.speculative:
            return step.seconds
        wide = self.curve(batch * (request.speculative + 1), curve.low, curve.high).at(kv)
        return wide.seconds - wide.attention + step.attention

    def curve(self, batch: int, low: int, high: int) -> DecodeCurve:
        """Decode steps of `batch` sequences for every kv from `low` to `high`."""
        for (size, start, end), known in self._curves.items():
            if size == batch and start <= low and high <= end:
                return known
        found = self._curves[batch, low, high] = DecodeCurve(self, batch, low, high)
        return found

    def micro_batches(self, batch: int) -> tuple[int, int]:
        """(sequences of one micro-batch of one attention group, micro-batches that fill the pipeline)."""
        if batch < 1:
            raise TorchperfError(f"a batch of {batch}", hint="give at least 1")
        local = -(-batch // self.plan.attention_dp)
        count = min(self.plan.pp, local)
        return -(-local // count), count

    def lowered(self, mode: str, sizes: Mapping[str, int]) -> Lowered:
        """The stages at these sizes of a micro-batch."""
        key = (mode, tuple(sorted(sizes.items())))
        if key not in self._lowered:
            graph = self.bind(mode, sizes)
            program = local_program(graph, self.plan, self.precision, self.runtime)
            chunks = stages(program, self.plan)
            found = tuple(self._stage(chunk, len(chunks), program, sizes) for chunk in chunks)
            self._lowered[key] = Lowered(found, program.facts)
        return self._lowered[key]

    def price(self, lowered: Lowered, works: tuple[Works, ...], mode: str, micro_batches: int) -> StepCost:
        """The pass of these stages with these works."""
        runtime = launches_of(self.runtime, mode)
        known: dict[int, StageCost] = {}
        costs = []
        for stage, row in zip(lowered.stages, works, strict=True):
            if id(stage) not in known:
                known[id(stage)] = cost(stage, row, self.pricer, runtime)
            costs.append(known[id(stage)])
        return StepCost(mode, tuple(costs), micro_batches)

    def _pass(self, mode: str, batch: int, lengths: Mapping[str, int]) -> StepCost:
        size, count = self.micro_batches(batch)
        sizes = {"batch": size, **lengths}
        key = (mode, (*sorted(sizes.items()), ("micro_batches", count)))
        if key not in self._costs:
            lowered = self.lowered(mode, sizes)
            self._costs[key] = self.price(lowered, tuple(s.works for s in lowered.stages), mode, count)
        return self._costs[key]

    def _stage(self, chunk: Chunk, count: int, program: Graph, sizes: Mapping[str, int]) -> Stage:
        serving = self.serving
        added = [("runtime, a layer", serving.layer * len(chunk.layers))]
        if chunk.index == 0:
            added.append(("runtime, a pass", serving.step))
            added.append(("runtime, a sequence", serving.sequence * sizes["batch"]))
        hop = 0.0
        if chunk.index == count - 1:
            added += self._sampling(chunk, program, sizes["batch"])
        elif chunk.sends:
            inside = per_node(self.plan.pp, self.plan.tp * self.plan.attention_dp, self.system.num_accelerators)
            within = (chunk.index + 1) % inside != 0
            hop = collective("p2p", chunk.sends, 2, self.system, per_node=2 if within else 1).seconds
        kept = tuple((name, seconds) for name, seconds in added if seconds)
        return Stage(chunk.graph, works_of(chunk.graph, self.runtime), chunk.layers, kept, chunk.sends, hop)

    def _sampling(self, chunk: Chunk, program: Graph, batch: int) -> list[tuple[str, float]]:
        """Logits gathered from the ranks that share the head, and the passes over them that choose a token."""
        width, whole = _head(chunk.graph, program.facts, self.plan.tp)
        found = []
        if width < whole:
            op = _gather(batch * width * 2, batch * whole * 2, self.plan.tp)
            found.append(("logits gathered", self.pricer(op, work_of(op)).seconds))
        nbytes = round(self.serving.logit_passes.value * 4 * batch * whole)
        if nbytes:
            row = Work("softmax", "none", "fp32", bytes_read=nbytes)
            found.append(("sampling", self.pricer(_SAMPLE, row).seconds))
        return found


@dataclass(slots=True)
class DecodeCurve:
    """Decode steps of a batch over a range of kv: two programs, and works between them, which are linear in kv.

    breaks  last kv of each range in which they are
    """

    planner: InferencePlanner
    batch: int
    low: int
    high: int
    breaks: tuple[int, ...] = field(init=False)
    _costs: dict[int, StepCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size, _ = self.planner.micro_batches(self.batch)
        first = self.planner.bind("decode", {"batch": size, "kv": self.low})
        self.breaks = tuple(b for b in _breaks(first) if self.low <= b < self.high)

    def at(self, kv: int) -> StepCost:
        """The step behind `kv` cached tokens."""
        if kv not in self._costs:
            self._costs[kv] = self._cost(kv)
        return self._costs[kv]

    def _cost(self, kv: int) -> StepCost:
        size, count = self.planner.micro_batches(self.batch)
        start = max((b + 1 for b in self.breaks if b < kv), default=self.low)
        end = min((b for b in self.breaks if b >= kv), default=self.high)
        low = self.planner.lowered("decode", {"batch": size, "kv": start})
        high = low if end == start else self.planner.lowered("decode", {"batch": size, "kv": end})
        works = tuple(
            between(a.works, b.works, kv, start, end) for a, b in zip(low.stages, high.stages, strict=True)
        )  # fmt: skip
        return self.planner.price(low, works, "decode", count)


def _breaks(graph: Graph) -> tuple[int, ...]:
    """The last kv of each range: with W - 1 tokens and the new one a window is full."""
    return tuple(sorted({entry.window - 1 for entry in graph.facts.cache if entry.window}))


def _head(graph: Graph, facts: Facts, tp: int) -> tuple[int, int]:
    """(columns of the head on one rank, of the whole)."""
    widths = [
        work_of(op).dim("n")
        for segment in reversed(graph.segments)
        if not segment.module
        for op in reversed(graph.blocks[segment.block].ops)
        if op.name.startswith(("aten.mm.", "aten.addmm.", "aten.linear."))
    ]
    if not widths:
        raise TorchperfError(f"`{facts.model}` has no output head behind its layers", hint="price its forward instead")
    vocabulary = facts.fact("vocab_size")
    whole = vocabulary if isinstance(vocabulary, int) else widths[0]
    return (widths[0], whole) if widths[0] * tp == whole else (max(widths[0], whole), max(widths[0], whole))


def _gather(before: int, after: int, ranks: int) -> Op:
    source, target = Value(0, "u8", (before,), (1,)), Value(1, "u8", (after,), (1,))
    attrs = (("axis", "tp"), ("ranks", ranks), ("stride", 1), ("role", "logits"))
    return Op("torchperf.all_gather", "forward", "", ("self",), (source,), (target,), attrs)


_SAMPLE = Op("torchperf.sample", "forward", "", (), (), ())
