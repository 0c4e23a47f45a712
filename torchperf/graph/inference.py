"""The nouns of serving: how a model is spread over devices and kept, and what a request costs. Seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from .confidence import Confidence
from .errors import TorchperfError
from .estimate import Share, Unpriced
from .explanation import Explanation
from .suggestion import ServingSuggestion


@dataclass(frozen=True, slots=True)
class InferencePrecision:
    """Formats of weights, activations (None: what goes with the weights) and cache; see rewrite/inference.py."""

    weights: str = "bf16"
    activations: str | None = None
    kv: str = "bf16"

    def __str__(self) -> str:
        x = f", activations {self.activations}" if self.activations else ""
        return f"weights {self.weights}{x}, KV {self.kv}"


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """Devices of an engine.

    tp            share each layer
    pp            stages; `pp_split` are their layers, in order
    ep            devices that share the experts: as many as `tp` (the same devices) or as `attention_dp`
    attention_dp  groups of `tp` devices with requests, attention and cache of their own, and experts in common
    replicas      engines that know nothing of each other
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    replicas: int = 1
    pp_split: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = (("--tp", self.tp), ("--pp", self.pp), ("--ep", self.ep), ("--attention-dp", self.attention_dp))
        for flag, value in (*sizes, ("--num-gpus", self.replicas)):
            if value < 1:
                raise TorchperfError(f"`{flag} {value}`: it must be at least 1")
        if self.attention_dp > 1 and self.ep != self.attention_dp:
            raise TorchperfError(
                f"`--attention-dp {self.attention_dp}` with `--ep {self.ep}`",
                hint="groups with attention of their own share the experts: give `--ep` as `--attention-dp`; a model "
                "without experts has replicas instead (`--num-gpus`)",
            )
        if self.attention_dp == 1 and self.ep not in (1, self.tp):
            raise TorchperfError(
                f"`--ep {self.ep}` is neither `--tp {self.tp}` nor `--attention-dp 1`",
                hint="experts lie on the devices of `--tp` or on those of `--attention-dp`: give `--ep` as one of them",
            )
        if self.pp_split and len(self.pp_split) != self.pp:
            raise TorchperfError(f"`--pp-split` has {len(self.pp_split)} parts", hint=f"give {self.pp}, one a stage")

    @property
    def engine_gpus(self) -> int:
        """Devices of one engine."""
        return self.tp * self.pp * self.attention_dp

    @property
    def num_gpus(self) -> int:
        return self.engine_gpus * self.replicas

    def over(self, num_gpus: int | None) -> InferencePlan:
        """The plan with as many replicas as `num_gpus` hold. Raises TorchperfError where they do not divide."""
        one = self.engine_gpus
        if num_gpus is None:
            return self
        if num_gpus % one:
            raise TorchperfError(
                f"`--num-gpus {num_gpus}` does not hold engines of {one} GPUs", hint=f"give a multiple of {one}"
            )
        return InferencePlan(self.tp, self.pp, self.ep, self.attention_dp, num_gpus // one, self.pp_split)


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens of a request, and what of it is known before.

    prefix_hit   share of the input whose keys and values are cached already
    speculative  tokens drafted a step, and the share of drafts accepted; 0 tokens without
    """

    input_len: int
    output_len: int
    prefix_hit: float = 0.0
    speculative: int = 0
    acceptance: float = 0.0

    @property
    def total(self) -> int:
        return self.input_len + self.output_len

    @property
    def known(self) -> int:
        """Input tokens that need no prefill; the last one always runs."""
        return min(int(self.input_len * self.prefix_hit), self.input_len - 1)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step yields: (1 - a^(k+1)) / (1 - a) [leviathan2023]."""
        k, a = self.speculative, self.acceptance
        return float(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Bytes on the device of the tightest stage.

    weights, buffers  of one rank
    activations       at the worst moment of the largest forward pass
    reserve           CUDA context, communication buffers, what the allocator rounds up
    graphs            captured CUDA graphs
    pool              that the cache may take; negative where the weights leave nothing
    cache             of the sequences asked for
    usable            what torch sees of the device
    budget            share of it that the engine keeps to
    """

    weights: int
    buffers: int
    activations: int
    reserve: int
    graphs: int
    pool: int
    cache: int
    usable: int
    budget: int
    stage: int = 0

    @property
    def fixed(self) -> int:
        """All but the cache."""
        return self.weights + self.buffers + self.activations + self.reserve + self.graphs


@dataclass(frozen=True, slots=True)
class CacheRow:
    """The cache of layers that are alike: bytes of a token (of a sequence, for states) of all of them, on one device.

    request_bytes  of one whole request
    """

    kind: str
    layers: int
    window: int
    token_bytes: float
    request_bytes: float


@dataclass(frozen=True, slots=True)
class Served:
    """One way of running requests, seconds a token and tokens a second.

    ttft, tpot, latency   of one request, mean
    itl_worst             longest gap between two tokens
    tokens_per_s          output tokens of one engine
    concurrency           requests that are on the engine at a time; `decoding` of them past their prefill
    busy                  share of the time that forward passes carry prefill
    """

    ttft: float
    tpot: float
    latency: float
    itl_worst: float
    tokens_per_s: float
    concurrency: float
    decoding: float
    busy: float = 0.0
    requests_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds to the first token of `requests` that come to an idle engine at once: their mean, and the last one's."""

    requests: int
    mean: float
    last: float


@dataclass(frozen=True, slots=True)
class InferenceEstimate:
    """The answer. Tables of operators are of one forward pass on one device of the slowest stage.

    served            what requests see of one engine; `simulated` the same by events, where batching is continuous;
                      `burst` their first tokens where all of them come at once
    batch             requests that decode together
    prefill_s         of one prompt's pass (of the whole static batch); decode_*_s of a step at the first length, the
                      last, and half way
    read_bound_s      no step half way is faster: weights and cache read once; `prefill_bound_s` no prompt's pass is:
                      full peak and bandwidth
    confidence        what measured runs tell of first token, time per token, latency and throughput
    max_concurrency   requests of this size at once in one engine; `pool_requests` the same with a part of one
    max_context       tokens of the longest single request, None without a bound; `positions` that the model has
    *_parts           (kind of work, seconds) of a pass over all stages
    """

    model: str
    gpu: str
    system: str
    runtime: str
    precision: InferencePrecision
    plan: InferencePlan
    request: Request
    batch: int
    parameters: int
    active_parameters: int
    served: Served
    simulated: Served | None
    burst: Burst | None
    prefill_s: float
    decode_first_s: float
    decode_last_s: float
    decode_mean_s: float
    read_bound_s: float
    verdict: str
    memory: ServingMemory
    kv_bytes_per_token: float
    kv_bytes_per_token_per_gpu: float
    cache: tuple[CacheRow, ...]
    max_concurrency: int
    pool_requests: float
    max_context: int | None
    positions: int | None
    prefill_ops: tuple[Share, ...]
    decode_ops: tuple[Share, ...]
    prefill_parts: tuple[tuple[str, float], ...]
    decode_parts: tuple[tuple[str, float], ...]
    definitions: tuple[tuple[str, str], ...]
    unpriced: tuple[Unpriced, ...] = ()
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    disaggregated: tuple[int, int] | None = None
    explanation: Explanation | None = None
    prefill_bound_s: float = 0.0
    confidence: tuple[Confidence, ...] = ()
    suggestions: tuple[ServingSuggestion, ...] = ()

    @property
    def num_gpus(self) -> int:
        """Devices in all."""
        engines = sum(self.disaggregated) if self.disaggregated else self.plan.replicas
        return self.plan.engine_gpus * engines

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second of all engines."""
        return self.served.tokens_per_s * (1 if self.disaggregated else self.plan.replicas)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.num_gpus
