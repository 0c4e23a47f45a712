"""The answer: what `torchperf.estimate` returns and the report room prints. Seconds, bytes and FLOPs throughout."""

from __future__ import annotations

from dataclasses import dataclass

from .confidence import Confidence
from .plan import Plan
from .suggestion import Suggestion

ONE_DEVICE = Plan().resolved(1)


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of one step on one device by phase (`recompute` apart); the optimizer's are not counted."""

    forward: int
    backward: int
    recompute: int

    @property
    def model(self) -> int:
        """Forward and backward, without what is recomputed."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the most loaded device at the worst moment of a step.

    activations     storages made in forward that backward reads, without those of the head and loss
    logits_loss     the same for the output head and the loss
    temporary       what else is alive at the peak: scratch of one op, gradients in flight
    gathered        parameters gathered for a block, its gradients before they are scattered, buffers of both
    buckets         copies of the gradients in the buckets that data parallelism sends
    reserve         CUDA context and allocator, from the runtime
    context         the part of the reserve that the allocator does not hold: CUDA context, libraries
    peak            allocated: the sum of the rows above the reserve, at the peak
    usable          observed usable capacity of the device
    peak_at         module path and phase of the op at the peak
    bytes_per_parameter   (what, bytes) e.g. ("weights bf16", 2), ("master fp32", 4)
    host            bytes in the memory of the host, per device
    in_flight       micro-batches (of a chunk of layers) whose activations are held at once
    delayed         those of which only what weight gradients read is still held
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    activations: int
    logits_loss: int
    temporary: int
    reserve: int
    peak: int
    usable: int
    peak_at: str = ""
    bytes_per_parameter: tuple[tuple[str, float], ...] = ()
    gathered: int = 0
    host: int = 0
    in_flight: int = 1
    delayed: int = 0
    buckets: int = 0
    context: int = 0

    @property
    def device(self) -> int:
        """What the device shows as used: the peak and the reserve."""
        return self.peak + self.reserve

    @property
    def reserved(self) -> int:
        """What the allocator holds of the device: the peak, and what it cannot give back."""
        return self.device - self.context

    @property
    def margin(self) -> float:
        """Free share of the usable capacity; negative where it does not fit."""
        return 1.0 - self.device / self.usable


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the step's time: by operator kind, by module, by bound, or one kernel."""

    name: str
    seconds: float
    calls: int
    flops: int
    nbytes: int
    bound: str = ""
    phase: str = ""
    detail: str = ""  # a kernel's dims


@dataclass(frozen=True, slots=True)
class Unpriced:
    """An op that no rule covers: its bytes are priced, its FLOPs are unknown."""

    op: str
    calls: int
    nbytes: int
    share_of_bytes: float


@dataclass(frozen=True, slots=True)
class Mfu:
    """Model FLOPs utilisation in one named convention: FLOPs per token over the dense peak."""

    convention: str
    flops_per_token: float
    value: float


@dataclass(frozen=True, slots=True)
class Run:
    """A whole training run: `steps` of them for `tokens`, in `seconds` with `goodput` as the share that trains.

    price_per_gpu_hour   dollars; None where none was given
    """

    tokens: float
    steps: int
    goodput: float
    seconds: float
    num_gpus: int
    price_per_gpu_hour: float | None = None

    @property
    def days(self) -> float:
        return self.seconds / 86400

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.num_gpus / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.price_per_gpu_hour is None else self.gpu_hours * self.price_per_gpu_hour


@dataclass(frozen=True, slots=True)
class Communication:
    """Seconds of a step, on average over the devices, that one axis of the plan communicates.

    exposed  while compute waits; hidden: beside compute
    """

    axis: str
    exposed: float
    hidden: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One model on one system under one plan.

    Times and FLOPs are of one step on one device, on average over a pipeline; memory is that of the most loaded
    device; `tokens_per_step` are those of all devices, `tokens_per_s` is per device.

    plan                resolved: no field is open
    bubble_s            seconds that the average device waits for others in the pipeline
    communication       what each axis exposes and hides
    slowed_s            seconds that compute loses beside hidden communication
    system              its name, with the devices of a node
    stages              memory of each pipeline rank, in order; () without a pipeline
    confidence          what measured runs tell of step time and memory
    suggestions         other plans, priced, the best first; `advice`: what is said beside them
    """

    model: str
    mode: str
    gpu: str
    num_gpus: int
    sizes: tuple[tuple[str, int], ...]
    precision: str
    optimizer: str
    recompute: str
    runtime: str
    parameters: int
    trainable_parameters: int
    verdict: str  # fits | tight | does not fit
    memory: Memory
    step_time_s: float
    device_time_s: float
    host_time_s: float
    phase_time_s: tuple[tuple[str, float], ...]
    roofline_time_s: float
    tokens_per_step: int
    tokens_per_s: float
    samples_per_s: float
    flops: Flops
    flops_noncausal: Flops
    peak_flops_per_s: float
    mfu: tuple[Mfu, ...]
    hfu: tuple[Mfu, ...]
    by_kind: tuple[Share, ...]
    by_module: tuple[Share, ...]
    by_bound: tuple[Share, ...]
    top_kernels: tuple[Share, ...]
    unpriced: tuple[Unpriced, ...] = ()
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    advice: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    plan: Plan = ONE_DEVICE
    bubble_s: float = 0.0
    communication: tuple[Communication, ...] = ()
    slowed_s: float = 0.0
    system: str = ""
    run: Run | None = None
    stages: tuple[Memory, ...] = ()
    confidence: tuple[Confidence, ...] = ()

    @property
    def tp(self) -> int:
        return self.plan.tp

    @property
    def sequence_parallel(self) -> bool:
        return self.plan.sequence_parallel
