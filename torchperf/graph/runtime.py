"""The software that runs a graph, as data: what it fuses, overlaps, keeps and adds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .inference_runtime import Serving
from .plan import Plan
from .system import Sourced


@dataclass(frozen=True, slots=True)
class Training:
    """How a runtime trains.

    gradients         dtype they are kept in between micro-batches: `parameter`, `fp32`, or `both`: summed in fp32, the
                      last micro-batch's in the weights' dtype until the next backward
    accumulation      `fused` into the product that makes them, or a `separate` addition
    parameters        `copy`: 16-bit weights beside fp32 masters; `shard`: the fp32 shards are the masters, cast as
                      they are gathered (with ZeRO 3)
    passes            over the optimizer's memory, in order: see rewrite/optimizer.py
    overlap           what runs beside compute: tp (a collective beside kernels that do not need it), tp-pipelined (in
                      slices beside the product that makes or reads its tensor), ep (beside another micro-batch),
                      gradients, weights, p2p
    regather          sequence parallelism gathers the input again for the weight gradient, rather than keep it
    norm_gradients    when sequence parallelism sums the gradients of replicated parameters over its ranks: in `each`
                      backward, once a `step`, or `never`
    scatter_gather    pipeline sends a slice a tensor-parallel rank, gathered on arrival
    overlap_slowdown  share of the hidden communication time that compute loses to it
    bucket            bytes of gradients that one collective carries
    bucket_copies     buckets are memory beside the gradients, and not their home, below ZeRO 2
    layer_overhead    host seconds a layer and pass that nothing hides; None without
    pipeline_whole    ZeRO 3 under a pipeline: weights stay gathered, gradients whole until the last micro-batch
    step_copies       bytes a parameter of this rank's share that the optimizer copies into flat buffers; None: none
    step_buffer       bytes of the flat buffer that gradients are reduced through once a step; None: none
    pace              (architecture, times): how much longer kernels take in a step than alone; 1 where none is named
    """

    gradients: str
    accumulation: str
    parameters: str
    passes: tuple[str, ...]
    overlap: tuple[str, ...]
    regather: bool
    norm_gradients: str
    scatter_gather: bool
    overlap_slowdown: Sourced
    bucket: Sourced
    layer_overhead: Sourced | None = None
    pipeline_whole: bool = False
    bucket_copies: bool = False
    step_copies: Sourced | None = None
    step_buffer: Sourced | None = None
    pace: tuple[tuple[str, Sourced], ...] = ()

    def gradient_bytes(self, weight: float) -> float:
        """Bytes of a parameter's gradient that last through a step, for `weight` bytes of its weight."""
        return {"parameter": weight, "fp32": 4.0, "both": 4.0 + weight}[self.gradients]

    @property
    def wide(self) -> bool:
        """Whether gradients are summed in fp32."""
        return self.gradients != "parameter"

    def runs(self, plan: Plan) -> Plan:
        """The plan as it runs. Weights and gradients that stay whole all through a step are held as under ZeRO 1.

        Source: pytorch/torchtitan, apply_fsdp (no reshard after forward under a pipeline); PyTorch,
        torch/distributed/pipelining/stage.py, backward_maybe_with_nosync (neither reshard nor gradient sync before the
        last backward) and fsdp/_fully_shard (`unsharded_accumulated_grad`, in the reduce dtype)
        """
        whole = self.pipeline_whole and plan.pp > 1 and plan.zero_stage == 3
        return replace(plan, zero_stage=1) if whole else plan

    def slower(self, architecture: str) -> float:
        """How much longer kernels take in a step on that architecture than alone."""
        return dict(self.pace)[architecture].value if architecture in dict(self.pace) else 1.0


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """How much longer a runtime's attention kernels take on an architecture than the fastest, which were measured."""

    architecture: str
    forward: Sourced
    backward: Sourced


@dataclass(frozen=True, slots=True)
class Runtime:
    """The software that runs the graph, as data.

    fused                chains of pointwise ops run as one kernel
    fused_outside        also outside the repeated layers: embedding, head, loss
    attention            form of attention: `flash` or `unfused`
    launch               host seconds to dispatch one op
    reserve              bytes of device memory a process takes before its first tensor
    allocator_fraction   bytes reserved beyond bytes allocated, as a share of the allocated
    training             what only a training step meets
    attention_kernels    by architecture, where they are not the fastest
    serving              what only serving meets; None for a runtime that trains alone
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    fused: bool
    attention: str
    launch: Sourced
    reserve: Sourced
    allocator_fraction: Sourced
    training: Training
    file: str
    attention_kernels: tuple[AttentionKernel, ...] = ()
    serving: Serving | None = None
    fused_outside: bool = True

    def attention_slowdown(self, architecture: str, backward: bool) -> Sourced | None:
        """Times the fastest kernel's time on that architecture; None where the runtime has the fastest."""
        for kernel in self.attention_kernels:
            if kernel.architecture == architecture:
                return kernel.backward if backward else kernel.forward
        return None
