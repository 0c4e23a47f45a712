"""Flags that were given and change nothing: each is an error that says what the flag needs.

Only what the user asked for is looked at: plans that a search or a table of measurements makes may hold idle fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .graph.errors import TorchperfError
from .graph.graph import Graph
from .graph.plan import Plan
from .partition.expert_domain import NoExperts
from .partition.expert_local import find_local
from .partition.factors import propagate
from .partition.replicas import groups
from .partition.stages import layers_of, split_layers
from .rewrite import recompute

OF_BACKWARD = ("zb-h1", "dualpipe")  # schedules that move parts of backward


@dataclass(frozen=True, slots=True)
class Idle:
    """A flag as it was given, where it has no effect, and what it would take."""

    flag: str
    where: str
    needs: str

    def error(self) -> TorchperfError:
        """The error that tells of it."""
        return TorchperfError(f"`{self.flag}` has no effect {self.where}", hint=f"{self.needs}, or leave it out")


def check_plan(asked: Plan, plan: Plan, graph: Graph) -> None:
    """Raise TorchperfError for the first field of `asked` that changes nothing in `plan`, the same one resolved."""
    train = graph.facts.mode == "train"
    for idle in (*_degrees(asked, plan), *(() if train else _forward(asked)), *_replicas(asked, plan)):
        raise idle.error()
    if asked.expert_tp > 1:
        _check_experts(graph)
    _check_layers(asked, plan, graph)


def check_run(mode: str, optimizer: str, tokens: float | None, goodput: float, price: float | None) -> None:
    """The same of what is asked beside the plan."""
    if mode == "forward" and optimizer != "adamw":
        raise Idle(f"--optimizer {optimizer}", "in a forward pass", "give `--mode train`").error()
    if mode == "forward" and tokens:
        raise Idle("--tokens", "in a forward pass: it is of a training run", "give `--mode train`").error()
    for flag, given in (("--goodput", goodput != 1), ("--price", price is not None)):
        if given and not tokens:
            raise Idle(flag, "without `--tokens`", "give `--tokens`").error()


def _degrees(asked: Plan, plan: Plan) -> Iterator[Idle]:
    """Ways to split along an axis of one rank."""
    alone = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(plan, axis) == 1]
    for axis, flag, given in (
        ("tp", "--sequence-parallel", asked.sequence_parallel),
        ("tp", f"--tp-plan {asked.tp_plan}", asked.tp_plan),
        ("tp", f"--expert-tp {asked.expert_tp}", asked.expert_tp),
        ("pp", f"--pp-split {','.join(map(str, asked.pp_split))}", asked.pp_split),
        ("pp", f"--schedule {asked.schedule}", asked.schedule),
        ("cp", f"--cp-kind {asked.cp_kind}", asked.cp_kind),
        ("ep", f"--moe-imbalance {asked.moe_imbalance:g}", asked.moe_imbalance != 1),
    ):
        if given and axis in alone:
            yield Idle(flag, f"with `--{axis} 1`", f"give `--{axis}` of at least 2")


def _forward(asked: Plan) -> Iterator[Idle]:
    """What only a backward pass or an optimizer would feel."""
    for flag, given in (
        (f"--recompute {asked.recompute}", asked.recompute != "none"),
        (f"--offload {asked.offload}", asked.offload == "optimizer"),
        (f"--zero {asked.zero_stage}", asked.zero_stage in (1, 2)),
        (f"--reduce-dtype {asked.reduce_dtype}", asked.reduce_dtype),
        (f"--schedule {asked.schedule}", asked.schedule in OF_BACKWARD),
    ):
        if given:
            yield Idle(flag, "in a forward pass", "give `--mode train`")


def _replicas(asked: Plan, plan: Plan) -> Iterator[Idle]:
    """How replicas share states and sum gradients. Replicas of experts count where the rest has none."""
    every = [groups(plan), groups(plan, experts=True)]
    ranks, shard = max(g.ranks for g in every), max(g.shard.ranks for g in every)
    zero, sharded = f"--zero {asked.zero_stage}", f"--dp-shard {asked.dp_shard}"
    elsewhere = plan.pp > 1 or plan.offload != "none"  # tied embeddings, copies of DualPipe; what goes to the host
    stage = 0 if plan.offload != "none" and asked.zero_stage > 1 else asked.zero_stage  # gradients go to the host
    if ranks == 1:
        for flag, given in (
            (zero, stage > 0), (sharded, asked.dp_shard), ("--no-reshard", not asked.reshard),
            (f"--reduce-dtype {asked.reduce_dtype}", asked.reduce_dtype and not elsewhere),
        ):  # fmt: skip
            if given:
                yield Idle(
                    flag, "with one replica of the model", "give `--dp` of at least 2, by more `--num-gpus` if need be"
                )
    if stage > 0 and shard == 1:
        yield Idle(zero, f"with `{sharded}`: every replica keeps its own states", "give a larger `--dp-shard`")
    if asked.dp_shard and plan.zero_stage == 0:
        yield Idle(sharded, "with `--zero 0`: nothing is shared out", "give `--zero` of at least 1")
    if not asked.reshard and (plan.zero_stage < 3 or shard == 1):
        where = f"with `--zero {plan.zero_stage}`" if plan.zero_stage < 3 else f"with `{sharded}`"
        yield Idle("--no-reshard", f"{where}: no weights are gathered", "give `--zero 3` over several replicas")


def _check_experts(graph: Graph) -> None:
    """Raises NoExperts. That experts cannot be told from the rest of a layer is for the split itself to say."""
    try:
        find_local(propagate(graph))
    except NoExperts:
        raise
    except TorchperfError:
        return


def _check_layers(asked: Plan, plan: Plan, graph: Graph) -> None:
    """`full:N` of a stage that has fewer layers."""
    layers, count = layers_of(graph), recompute.parse(asked.recompute)[1]
    if count is None or not layers:
        return
    sizes = split_layers(len(layers), plan)
    most = max(sum(sizes[rank :: plan.pp]) for rank in range(plan.pp))
    if count > most:
        raise TorchperfError(
            f"`--recompute {asked.recompute}` counts more layers than a stage has",
            facts=[("layers of a stage", str(most))],
            hint=f"give `full`, or at most `full:{most}`",
        )
