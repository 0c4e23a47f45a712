"""How a step is spread over devices: what the user chose, and the mesh that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .errors import TorchperfError

AXES = ("tp", "cp", "dp", "pp")  # the fastest first: neighbours of a tensor-parallel group sit in one node
CP_KINDS = ("ring", "ulysses")
OFFLOADS = ("none", "optimizer", "params+optimizer")
MAX_RUNS = 500_000  # of a stage in one step: micro-batches times stages; more takes the scheduler seconds
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe")
REDUCE_DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Plan:
    """The parallelism of a training step; `resolved` fills in what follows from the rest.

    tp, cp, pp         ranks that share a layer, a sequence, the layers
    dp                 replicas of the model, sharded or not; 0: what the number of devices leaves
    dp_shard           of those, how many share one copy of the states; 0: all of them (hybrid sharding where fewer)
    zero_stage         0 all-reduce; 1 optimizer states; 2 and gradients; 3 and parameters (FSDP) split over dp_shard;
                       -1: 3 where dp_shard is given or the runtime shards, else 0
    reshard            ZeRO 3: whether a block's parameters go after its forward, and are gathered again for backward
    ep                 ranks that share the experts, out of dp * cp (and of tp, where expert_tp is 1)
    expert_tp          ranks that share one expert: tp (0), or 1: then each routes its own slice of the tokens
    moe_imbalance      rows of the most loaded expert rank over the mean
    virtual_stages     chunks of layers of one pipeline stage
    pp_split           layers of each stage (pp * virtual_stages of them, in the order of the layers); () for even
    schedule           order of the micro-batches: one of SCHEDULES; "": interleaved with virtual stages, else 1f1b
    reduce_dtype       in which gradients are summed; "": fp32
    cp_kind            one of CP_KINDS; "": ring
    micro_batch        samples of one rank's forward; 0: the model's own
    global_batch       samples of a step over all devices; 0: micro_batch * dp, once through the pipeline per stage
    recompute          none | selective | selective-ops | full | full:N (the first N layers of a stage) | modules:A+B
    offload            what is kept in the memory of the host
    tp_plan            "" inferred | "hf" the model's own | a file
    """

    tp: int = 1
    sequence_parallel: bool = False
    tp_plan: str = ""
    pp: int = 1
    pp_split: tuple[int, ...] = ()
    virtual_stages: int = 1
    schedule: str = ""
    dp: int = 0
    dp_shard: int = 0
    zero_stage: int = -1
    reshard: bool = True
    reduce_dtype: str = ""
    cp: int = 1
    cp_kind: str = ""
    ep: int = 1
    expert_tp: int = 0
    moe_imbalance: float = 1.0
    micro_batch: int = 0
    global_batch: int = 0
    recompute: str = "none"
    offload: str = "none"

    def resolved(self, num_gpus: int = 0, micro_batch: int = 1, *, shards: bool = False) -> Plan:
        """The same plan without open fields, for `num_gpus` devices (0: as many as it needs).

        shards   whether the runtime keeps sharded parameters

        Raises TorchperfError, naming the flag, where the degrees do not fit each other.
        """
        self._check_choices()
        model = self.tp * self.cp * self.pp
        if num_gpus and num_gpus % (model * (self.dp or 1)):
            raise _mismatch(self, num_gpus)
        dp = self.dp or (num_gpus // model if num_gpus else self.least_gpus // model)
        if num_gpus and dp * model != num_gpus:
            raise _mismatch(self, num_gpus)
        shard = self.dp_shard or dp
        if dp % shard:
            raise _not_dividing("--dp-shard", shard, "--dp", dp)
        expert_tp = self.expert_tp or self.tp
        if expert_tp not in (1, self.tp):
            raise TorchperfError(
                f"`--expert-tp {expert_tp}`: experts are split like the rest or not at all",
                hint="give 1, or leave it out" if self.tp == 1 else f"give 1 or {self.tp}",
            )
        among = dp * self.cp * self.tp // expert_tp
        if among % self.ep:
            raise _not_dividing("--ep", self.ep, "dp * cp" + " * tp" * (expert_tp < self.tp), among)
        micro = self.micro_batch or micro_batch
        batch = self.global_batch or micro * dp * self.pp
        if batch % (micro * dp):
            raise TorchperfError(
                f"`--global-batch {batch}` is no multiple of micro-batch times replicas",
                facts=[("micro-batch", str(micro)), ("dp", str(dp))],
                hint=f"give a multiple of {micro * dp}",
            )
        runs = batch // (micro * dp) * self.pp * self.virtual_stages
        if runs > MAX_RUNS:
            raise TorchperfError(
                f"`--global-batch {batch}` makes {runs:,} runs of a stage, more than {MAX_RUNS:,}",
                facts=[("micro-batch", str(micro)), ("dp", str(dp)), ("pp", str(self.pp))],
                hint="give a smaller `--global-batch`, or a larger `--micro-batch`",
            )
        schedule = self.schedule or ("interleaved" if self.virtual_stages > 1 else "1f1b")
        zero = self.zero_stage if self.zero_stage >= 0 else 3 * (bool(self.dp_shard) or shards) * (dp * self.cp > 1)
        return replace(
            self, dp=dp, dp_shard=shard, expert_tp=expert_tp, micro_batch=micro, global_batch=batch,
            schedule=schedule, zero_stage=zero, cp_kind=self.cp_kind or CP_KINDS[0],
            reduce_dtype=self.reduce_dtype or REDUCE_DTYPES[0],
        )  # fmt: skip

    @property
    def least_gpus(self) -> int:
        """Devices that the plan needs where their number is not given. Raises TorchperfError for a degree below 1."""
        self._check_choices()
        return self.tp * self.cp * self.pp * (self.dp or max(self.dp_shard, self._least_dp))

    @property
    def _least_dp(self) -> int:
        """Replicas that expert parallelism needs."""
        inside = self.cp * self.tp // (self.expert_tp or self.tp)
        return self.ep // math.gcd(self.ep, inside)

    def _check_choices(self) -> None:
        for flag, value in (
            ("--tp", self.tp), ("--pp", self.pp), ("--cp", self.cp), ("--ep", self.ep),
            ("--virtual-stages", self.virtual_stages), ("--expert-tp", self.expert_tp or 1),
        ):  # fmt: skip
            if value < 1:
                raise TorchperfError(f"`{flag} {value}`: it must be at least 1")
        for flag, value in (("--dp", self.dp), ("--dp-shard", self.dp_shard), ("--global-batch", self.global_batch)):
            if value < 0:
                raise TorchperfError(f"`{flag} {value}`: it must be at least 1")
        for flag, chosen, choices in (
            ("--cp-kind", self.cp_kind or CP_KINDS[0], CP_KINDS), ("--offload", self.offload, OFFLOADS),
            ("--schedule", self.schedule or SCHEDULES[0], SCHEDULES),
            ("--reduce-dtype", self.reduce_dtype or REDUCE_DTYPES[0], REDUCE_DTYPES),
        ):  # fmt: skip
            if chosen not in choices:
                raise TorchperfError(f"unknown `{flag} {chosen}`", hint=f"one of {', '.join(choices)}")
        if self.zero_stage not in (-1, 0, 1, 2, 3):
            raise TorchperfError(f"`--zero {self.zero_stage}`: it must be 0, 1, 2 or 3")
        if not 1 <= self.moe_imbalance < math.inf:
            raise TorchperfError(f"`--moe-imbalance {self.moe_imbalance}`: the most loaded has at least the mean, 1")
        if self.virtual_stages > 1 and self.pp == 1:
            raise TorchperfError(
                f"`--virtual-stages {self.virtual_stages}` without a pipeline", hint="give `--pp` of at least 2"
            )
        if self.schedule == "dualpipe" and self.virtual_stages > 1:
            raise TorchperfError(
                f"`--schedule dualpipe` with `--virtual-stages {self.virtual_stages}`: each rank has one stage for "
                "each direction, and no more",
                hint="leave out `--virtual-stages`, or give `--schedule interleaved`",
            )
        if self.pp_split and len(self.pp_split) != self.pp * self.virtual_stages:
            raise TorchperfError(
                f"`--pp-split` has {len(self.pp_split)} part{'s' * (len(self.pp_split) != 1)}",
                hint=f"give {self.pp * self.virtual_stages}, one a (virtual) stage, in the order of the layers",
            )

    @property
    def num_gpus(self) -> int:
        """Devices of a resolved plan."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one pipeline runs in a step, of a resolved plan: gradient accumulation."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def replicate(self) -> int:
        """Copies of the sharded states."""
        return self.dp // self.dp_shard

    @property
    def mesh(self) -> Mesh:
        """The devices of a resolved plan."""
        return Mesh((("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pp)))


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices as a grid: (axis, size), the fastest first. Rank r has coordinate (r // stride) % size on an axis."""

    axes: tuple[tuple[str, int], ...]

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return dict(self.axes)[axis]

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours on an axis."""
        step = 1
        for name, size in self.axes:
            if name == axis:
                return step
            step *= size
        raise TorchperfError(f"no axis `{axis}`", hint=f"one of {', '.join(name for name, _ in self.axes)}")

    @property
    def ranks(self) -> int:
        return math.prod(size for _, size in self.axes)


def per_node(ranks: int, stride: int, accelerators_per_node: int) -> int:
    """Ranks of one group that share a node, where its members are `stride` apart."""
    return max(1, min(ranks, accelerators_per_node // stride))


def _mismatch(plan: Plan, num_gpus: int) -> TorchperfError:
    parts = [("--tp", plan.tp), ("--cp", plan.cp), ("--pp", plan.pp), ("--dp", plan.dp or 1)]
    needed = math.prod(n for _, n in parts)
    return TorchperfError(
        f"`--num-gpus {num_gpus}` does not fit the plan",
        facts=[("plan", " x ".join(f"{flag} {n}" for flag, n in parts if n > 1) or "1 GPU")],
        hint=f"give a multiple of {needed} GPUs" if not plan.dp else f"give {needed} GPUs, or leave out `--dp`",
    )


def _not_dividing(flag: str, value: int, other: str, size: int) -> TorchperfError:
    small = [d for d in range(1, min(math.isqrt(size), 10_000) + 1) if size % d == 0]
    legal = {*small, *(size // d for d in small)}  # all of them, up to a size of 1e8
    near = sorted(legal, key=lambda d: (abs(d - value), d))[:2]
    return TorchperfError(
        f"`{flag} {value}` does not divide {other} = {size}",
        facts=[("nearest", " or ".join(str(d) for d in sorted(near)))],
        hint="give a divisor",
    )
