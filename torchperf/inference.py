"""One estimate of inference, read top to bottom: bind, plan, memory, a static batch or many requests, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from . import hardware
from .answer import unpriced_ops, verdict
from .confidence import confidence
from .explanation_inference import Told, explain
from .frontend import load
from .graph.cache import bytes_per_token
from .graph.errors import TorchperfError
from .graph.graph import Capture, Facts, Graph
from .graph.inference import Burst, InferenceEstimate, InferencePlan, InferencePrecision, Request, Served, ServingMemory
from .inference_memory import Room, element_bits, rows
from .inference_notes import DEFINITIONS, assumptions
from .inference_planner import InferencePlanner
from .inference_tables import compute_bound, operators, parts, priced_rows, read_bound
from .pipeline import load_system
from .rewrite.inference import EXPERTS, PER_TOKEN, formats
from .serving import Continuous
from .suggestions_inference import Serving, serving_suggestions

DEFAULT_RUNTIME = "vllm"
FEWEST = 2  # tokens of a prompt: one alone would be a decode step


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is asked to do: a static batch, `concurrency` requests at any time, or arrivals a second.

    disaggregated   (engines for prompts, engines for tokens), with a concurrency
    utilization     share of the device that the engine takes; None for the runtime's
    batched_tokens  tokens of one pass; None for the runtime's
    model_len       longest request that the engine must take; None: the one asked for
    """

    batch: int = 1
    concurrency: int | None = None
    rate: float | None = None
    disaggregated: tuple[int, int] | None = None
    utilization: float | None = None
    batched_tokens: int | None = None
    model_len: int | None = None

    @property
    def continuous(self) -> bool:
        return self.concurrency is not None or self.rate is not None


class Binder:
    """(mode, sizes) -> the bound graph of one model, by name or path, or from captures by mode."""

    def __init__(self, model: str | Mapping[str, Capture], refresh: bool = False) -> None:
        self.model, self.refresh = model, refresh
        self._graphs: dict[str, list[Graph]] = {}

    def __call__(self, mode: str, sizes: Mapping[str, int]) -> Graph:
        known = self._graphs.setdefault(mode, [])
        found = next((graph for graph in known if graph.holds(sizes)), None)
        if found is None:
            found = self._found(mode, sizes)
            known.append(found)
        return found.bind(**sizes)

    def _found(self, mode: str, sizes: Mapping[str, int]) -> Graph:
        if isinstance(self.model, str):
            return load.load(self.model, mode, sizes, self.refresh)[1]
        if mode not in self.model:
            raise TorchperfError(f"no capture of mode `{mode}` is given", hint=f"given: {', '.join(self.model)}")
        found = self.model[mode].find(sizes)
        if found is None:
            self.model[mode].bind(**sizes)  # raises
            raise AssertionError(sizes)
        return found


def estimate_inference(
    model: str | Mapping[str, Capture], request: Request, asked: Load, *, gpu: str = "", system: str | None = None,
    num_gpus: int | None = None, precision: InferencePrecision | None = None, plan: InferencePlan | None = None,
    runtime: str = DEFAULT_RUNTIME, power_cap: float | None = None, refresh: bool = False,
    suggest: bool | None = None,
) -> InferenceEstimate:  # fmt: skip
    """What serving `model` costs on devices of `gpu`. Raises TorchperfError.

    model   a path, bundled name or hub id as on the command line, or its captures by mode (prefill, decode, extend)
    plan    of one engine; `num_gpus` hold one or more of them
    suggest price other ways too, for what to change: True, False, or None where it does not fit or is tight
    """
    runs_on = hardware.load_runtime(runtime)
    spread = (plan or InferencePlan()).over(num_gpus)
    to = precision or InferencePrecision()
    formats(to.weights, to.activations)
    _check(request, asked)
    engines = sum(asked.disaggregated) if asked.disaggregated else 1
    bind = Binder(model, refresh)

    def price(way: Serving) -> InferenceEstimate:
        nodes = load_system(gpu, system, way.plan.engine_gpus * engines, power_cap)
        planner = InferencePlanner(bind, nodes, runs_on, way.precision, way.plan)
        load = replace(asked, batch=way.batch, concurrency=way.concurrency)
        return _estimate(planner, _facts(bind, request, load), request, load)

    own = Serving(to, spread, asked.batch, asked.concurrency, asked.rate is not None, num_gpus is not None)
    found = price(own)
    if suggest is False or (suggest is None and found.verdict == "fits"):
        return found
    return replace(found, suggestions=serving_suggestions(found, own, price))


def _check(request: Request, asked: Load) -> None:
    if request.input_len < FEWEST:
        raise TorchperfError(f"`--input-len {request.input_len}`: a prompt has at least {FEWEST} tokens")
    if not 0 <= request.prefix_hit <= 1:
        raise TorchperfError(f"`--prefix-hit {request.prefix_hit:g}` is no share", hint="give a number from 0 to 1")
    if asked.concurrency is not None and asked.rate is not None:
        raise TorchperfError("`--concurrency` and `--request-rate` are two ways to say one thing", hint="give one")
    if asked.continuous and asked.batch != 1:
        raise TorchperfError(
            "`--batch` is of a static batch, `--concurrency` and `--request-rate` of many requests", hint="give one"
        )
    if asked.disaggregated and asked.concurrency is None:
        raise TorchperfError("`--disaggregated` needs the requests at a time", hint="give `--concurrency`")
    if asked.model_len is not None and asked.model_len < request.total:
        raise TorchperfError(
            f"`--max-model-len {asked.model_len}` is less than a request of {request.total} tokens",
            hint="give a larger `--max-model-len`, or a smaller `--input-len` and `--output-len`",
        )


def _facts(bind: Binder, request: Request, asked: Load) -> Facts:
    """What the model tells of itself; refuses requests that it has no positions for."""
    facts = bind("decode", {"batch": 1, "kv": FEWEST}).facts
    if any(entry.kind == "cross" for entry in facts.cache):
        raise TorchperfError(
            f"`{facts.model}` is an encoder-decoder: its inference is not priced", hint="give a causal language model"
        )
    positions = _positions(facts)
    longest = max(request.total, asked.model_len or 0)
    if positions is not None and longest > positions:
        raise TorchperfError(
            f"a request of {longest} tokens is more than `{facts.model}` has positions for",
            facts=[("positions", str(positions))],
            hint="give less `--input-len`, `--output-len` or `--max-model-len`",
        )
    return facts


def _positions(facts: Facts) -> int | None:
    limit = dict(facts.limits).get("kv")
    return None if limit is None else limit + 1


def room_of(planner: InferencePlanner, facts: Facts, request: Request, asked: Load) -> Room:
    """The memory of the engine: its largest pass is the budget of tokens, or all prompts of a static batch."""
    serving = planner.serving
    lowered = planner.lowered("decode", {"batch": 1, "kv": max(request.input_len, FEWEST)})
    share = serving.memory_utilization.value if asked.utilization is None else asked.utilization
    budget = asked.batched_tokens or int(serving.max_batched_tokens.value)
    if serving.pool == "exact" and not asked.continuous:
        sequences, _ = planner.micro_batches(asked.batch)
        tokens = sequences * (request.input_len - request.known)
        if asked.batched_tokens:
            tokens, sequences = min(tokens, budget), 1
    else:
        tokens, sequences = budget, 1
    positions = _positions(facts)
    if positions is not None:
        sequences = max(sequences, -(-tokens // positions))
    return Room(planner, lowered, share, max(tokens, FEWEST), sequences)


def _estimate(planner: InferencePlanner, facts: Facts, request: Request, asked: Load) -> InferenceEstimate:
    room = room_of(planner, facts, request, asked)
    most, longest = room.most(max(request.total, asked.model_len or 0)), room.longest()
    one = most if asked.model_len is None else room.most(request.total)
    served, simulated, burst, running = _served(planner, request, asked, max(one, 1), room)
    own = request.input_len - request.known
    prefill = planner.extend(running if not asked.continuous else planner.plan.attention_dp, own, request.known)
    last = max(request.total - 2, request.input_len)
    curve = planner.curve(running, request.input_len, last)
    decode = curve.at((request.input_len + last) // 2)
    wanted = asked.batch if not asked.continuous else 1
    memory = room.tightest(wanted, request.total)
    bandwidth = planner.system.accelerator.memory.bandwidth.value
    bits, rows_of = element_bits(facts, planner.precision.kv), priced_rows(decode)
    priced = priced_rows(prefill) + rows_of
    positions, cache = _positions(facts), rows(planner, facts, request)
    context = positions if longest is None else longest if positions is None else min(longest, positions)
    return InferenceEstimate(
        model=facts.model, gpu=planner.system.accelerator.name,
        system=f"{planner.system.name}, {planner.system.num_accelerators} a node", runtime=planner.runtime.name,
        precision=planner.precision, plan=planner.plan, request=request, batch=running,
        parameters=sum(p.numel for p in facts.parameters), active_parameters=active(facts),
        served=served, simulated=simulated, burst=burst, prefill_s=prefill.seconds,
        decode_first_s=curve.at(request.input_len).seconds, decode_last_s=curve.at(last).seconds,
        decode_mean_s=decode.seconds, read_bound_s=read_bound(decode, bandwidth),
        verdict=_verdict(memory, longest, max(request.total, asked.model_len or 0)), memory=memory,
        kv_bytes_per_token=bytes_per_token(facts, bits), kv_bytes_per_token_per_gpu=_per_gpu(planner, facts, bits),
        cache=cache, max_concurrency=one,
        pool_requests=_in_pool(room, request), max_context=context, positions=positions,
        prefill_ops=operators(prefill.slowest), decode_ops=operators(decode.slowest),
        prefill_parts=parts(prefill), decode_parts=parts(decode), definitions=DEFINITIONS,
        unpriced=unpriced_ops(priced), guesses=facts.guesses,
        assumptions=assumptions(planner, facts, request, asked.continuous, asked.disaggregated is not None)
        + _limited(asked, one),
        sources=tuple(sorted({s for *_, price in priced for term in price.terms for s in term.sources})),
        disaggregated=asked.disaggregated,
        prefill_bound_s=compute_bound(prefill, planner.system.accelerator),
        confidence=confidence("inference", planner.system.accelerator.name, planner.runtime.name),
        explanation=explain(planner, Told(request, served, memory, cache, prefill, decode)),
    )  # fmt: skip


def _served(
    planner: InferencePlanner, request: Request, asked: Load, most: int, room: Room
) -> tuple[Served, Served | None, Burst | None, int]:
    """What requests see, the same by events, where all come at once, and the requests that decode together."""
    if not asked.continuous:
        return planner.generate(asked.batch, request), None, None, asked.batch
    budget = asked.batched_tokens or int(planner.serving.max_batched_tokens.value)
    many = Continuous(planner, request, budget, most)
    replicas = planner.plan.replicas
    if asked.rate is not None:
        found, check = many.at_rate(asked.rate / replicas)
        return found, check, None, max(round(found.decoding), 1)
    assert asked.concurrency is not None
    if asked.disaggregated:
        found = many.disaggregated(asked.concurrency, *asked.disaggregated)
        return found, None, None, max(round(found.decoding / asked.disaggregated[1]), 1)
    found, check, first = many.at_concurrency(-(-asked.concurrency // replicas))
    return found, check, first, max(round(found.decoding), 1)


def _in_pool(room: Room, request: Request) -> float:
    """Requests that the tightest pool holds, in parts: 1.57 where a second one has not all its blocks."""
    found = [m.pool / m.cache if m.cache else float("inf") for m in room.stages(1, request.total)]
    return max(min(found), 0.0) * room.planner.plan.attention_dp


def _limited(asked: Load, most: int) -> tuple[str, ...]:
    if asked.concurrency is None or asked.concurrency <= most:
        return ()
    return (f"only {most} of {asked.concurrency} requests fit at once in an engine: the others wait outside of it",)


def _verdict(memory: ServingMemory, longest: int | None, length: int) -> str:
    """Of the tightest stage; an engine that cannot hold its longest request does not start."""
    if longest is not None and longest < length:
        return "does not fit"
    return verdict((memory.pool - memory.cache) / memory.usable)


def _per_gpu(planner: InferencePlanner, facts: Facts, bits: float) -> float:
    """Bytes of a token on a device of the stage that keeps the most layers."""
    whole = bytes_per_token(facts, bits, planner.plan.tp)
    if planner.plan.pp == 1:
        return whole
    lowered = planner.lowered("decode", {"batch": 1, "kv": FEWEST})
    own = []
    for stage in lowered.stages:
        numbers = {int(path.rpartition(".")[2]) for path in stage.layers}
        kept = tuple(replace(e, layers=tuple(i for i in e.layers if i in numbers)) for e in facts.cache)
        own.append(bytes_per_token(replace(facts, cache=kept), bits, planner.plan.tp))
    return max(own)


def active(facts: Facts) -> int:
    """Parameters that one token meets: of the experts those that it takes."""
    experts = next((v for key in EXPERTS if isinstance(v := facts.fact(key), int)), 0)
    taken = next((v for key in PER_TOKEN if isinstance(v := facts.fact(key), int)), 0)
    total = 0.0
    for p in facts.parameters:
        routed = experts and taken and "experts" in p.names[0] and p.shape and p.shape[0] == experts
        total += p.numel * (taken / experts if routed else 1)
    return round(total)
