"""Which of transformers' causal language models are captured, at the full size of their default configs, and how much
of each has a rule.

    python scripts/coverage.py --out coverage.jsonl [--tp] [--modes train prefill decode] [MODEL_TYPE ...]

Each model runs in a child process with a time limit a stage. What is known of a model is one line of the file, and a
model that has a line for every stage asked for is not run again. The table goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coverage_table import table, told

from torchperf.annotate import work
from torchperf.frontend import hf
from torchperf.frontend.capture import capture
from torchperf.frontend.inference import for_mode
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Graph
from torchperf.partition.choose import candidates
from torchperf.partition.factors import propagate
from torchperf.partition.given import given
from torchperf.partition.infer import Inferred, infer
from torchperf.partition.plan_file import plan_of
from torchperf.partition.prepare import Prepared, prepare

Record = dict[str, Any]
TOKENS, RANKS = 128, 2
BARS = {"train": 190, "prefill": 175, "decode": 175, "tp": 150}
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k", "expert_top_k",
    "top_k", "num_selected_experts", "num_experts_topk", "router_top_k", "topk", "moe_router_topk",
)  # fmt: skip
CLASSES = {
    "time": ("time limit",),
    "guess": (".item()", "needs the data", "meta tensor", "data-dependent"),
    "config": ("refuses the config", "cannot be built"),
    "package": ("No module named", "requires the", "ImportError"),
    "cache": ("caches in a way", "makes no cache", "cannot be captured as it generates"),
    "device": ("not on the expected device", "on different devices"),
    "inputs": ("cannot make inputs", "missing", "You must specify", "You have to specify"),
}


def main() -> int:
    """0 where every bar of the stages asked for is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL_TYPE", help="all of the registry by default")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a model, appended to")
    parser.add_argument("--modes", nargs="+", default=["train", "prefill", "decode"])
    parser.add_argument("--tp", action="store_true", help=f"split the training step over {RANKS} ranks too")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a stage")
    parser.add_argument("--again", action="store_true", help="run the models named again")
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    arguments = parser.parse_args()
    stages = [*arguments.modes, *(["tp"] if arguments.tp else [])]
    kinds = arguments.models or registry()
    known = read(arguments.out)
    for kind in kinds if not arguments.table else ():
        missing = [s for s in stages if arguments.again or s not in known.get(kind, {})]
        if missing:
            found = run(kind, missing, arguments.limit)
            known[kind] = {**known.get(kind, {}), **found}
            with arguments.out.open("a") as file:
                file.write(json.dumps({"model_type": kind, **found}) + "\n")
            print(f"{kind}: " + ", ".join(f"{s} {told(found[s])}" for s in missing), file=sys.stderr, flush=True)
    print(table({kind: known[kind] for kind in kinds if kind in known}))
    counts = {stage: sum(known.get(k, {}).get(stage, {}).get("ok", False) for k in kinds) for stage in stages}
    for stage, count in counts.items():
        print(f"{stage}: {count} of {len(kinds)} (bar {BARS.get(stage, '-')})")
    return int(any(count < BARS.get(stage, 0) for stage, count in counts.items()))


def registry() -> list[str]:
    """The model types of transformers' causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def read(path: Path) -> dict[str, Record]:
    """What the file holds of each model; later lines stand over earlier ones."""
    found: dict[str, Record] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        record = json.loads(line)
        found.setdefault(record.pop("model_type"), {}).update(record)
    return found


def run(kind: str, stages: list[str], limit: float) -> Record:
    """Stage -> what came of it, from a child that is ended where a stage takes longer than `limit`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, kind, stages))
    child.start()
    theirs.close()
    found: Record = {}
    reason = f"time limit of {limit:.0f} s"
    while len(found) < len(stages) and ours.poll(limit):
        try:
            stage, record = ours.recv()
        except EOFError:
            reason = "the process ended early"
            break
        found[stage] = record
    child.kill()
    child.join()
    late = [stage for stage in stages if stage not in found]
    for stage in late:
        found[stage] = {"ok": False, "class": classify(reason), "message": reason}
    if len(late) > 1 and reason.startswith("time"):  # what came after it may be quick
        found.update(run(kind, late[1:], limit))
    return found


def _child(pipe: Connection, kind: str, stages: list[str]) -> None:
    graph: Graph | None = None
    for stage in stages:
        start = time.perf_counter()
        try:
            if stage == "tp":
                record = split(graph or _captured(kind, "train")[0])
            else:
                found, top_k = _captured(kind, stage)
                record = described(found, top_k)
                graph = found if stage == "train" else graph
        except TorchperfError as error:
            text = "; ".join([error.message, *(f"{key}: {value}" for key, value in error.facts)])
            record = {"ok": False, "class": classify(text), "message": text}
        except Exception as error:
            record = {"ok": False, "class": "other", "message": f"{type(error).__name__}: {error}"}
        pipe.send((stage, {**record, "seconds": round(time.perf_counter() - start, 2)}))


def _captured(kind: str, mode: str) -> tuple[Graph, float]:
    """The bound graph of the default config, one capture, its sizes not free; and the experts that a token takes."""
    subject = for_mode(hf.from_config({"model_type": kind}, kind), mode)
    sizes = {name: min(TOKENS, subject.limits.get(name, TOKENS)) for name in subject.sizes} | {"batch": 1}
    graph = capture(replace(subject, fixed=subject.fixed or "one size is enough here"), mode, sizes)
    config: Any = subject.module.config
    return graph.bind(**{name: low for name, low, _, _ in graph.facts.ranges}), experts_taken(config.to_dict())


def experts_taken(config: Record) -> float:
    """Experts that compute something for a token, of the config or a part of it; 0 where it names none."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else None
    for part in (text or config, *(v for v in config.values() if isinstance(v, dict))):
        taken = next((k for name in TOP_K if isinstance(k := part.get(name), int) and k > 0), 0)
        idle, routed = part.get("zero_expert_num") or 0, part.get("n_routed_experts") or 0
        if taken:
            return taken * routed / (routed + idle) if idle and routed else taken
    return 0


def classify(text: str) -> str:
    """The class of a failure."""
    return next((name for name, marks in CLASSES.items() if any(mark in text for mark in marks)), "other")


def described(graph: Graph, top_k: float) -> Record:
    """What was recorded and how much of it has a rule."""
    total = known = flops = 0
    unruled: Counter[str] = Counter()
    for op, count in graph.ops():
        w = work(op)
        total += count * w.nbytes
        if w.known:
            known += count * w.nbytes
            flops += count * w.flops_noncausal if w.engine == "matrix" else 0
        else:
            unruled[op.name] += count
    facts = graph.facts
    used = met(graph)
    idle = [p for p in facts.parameters if p.storage not in used]
    return {
        "ok": True,
        "class_name": facts.model_class,
        "ops": graph.num_ops,
        "stored_ops": sum(len(block.ops) for block in graph.blocks),
        "parameters": sum(p.numel for p in facts.parameters),
        "matrix_flops": flops,
        "bytes": total,
        "bytes_ruled": known / total if total else 0.0,
        "flops_ruled": not any(map(contracts, unruled)),
        "unruled": dict(unruled),
        "unattributed": facts.unattributed,
        "guesses": list(facts.guesses),
        "assumptions": [a for a in facts.assumptions if "one size is enough" not in a],
        "untouched": sum(p.numel for p in idle),
        "untouched_names": [p.names[0] for p in idle[:5]],
        "experts": experts(graph, top_k),
    }


def met(graph: Graph) -> set[int]:
    """Storages that some op reads or writes."""
    return {storage for segment in graph.segments for storage in segment.storages}


def contracts(name: str) -> bool:
    """Whether torch itself counts the FLOPs of an operator."""
    import torch
    from torch.utils.flop_counter import flop_registry

    namespace, _, packet = name.partition(".")
    found = getattr(getattr(torch.ops, namespace, None), packet.partition(".")[0], None)
    return found in flop_registry


def experts(graph: Graph, top_k: float) -> Record:
    """Rows of every grouped product of the first pass over the tokens that it should have: tokens x top-k."""
    rows: Counter[int] = Counter()
    for op, count in graph.ops():
        if op.name.startswith("aten._grouped_mm") and op.phase == "forward":
            rows[int(op.inputs[0].shape[-2])] += count  # type: ignore[arg-type]
    bound = dict(graph.bound or ())
    tokens = bound.get("batch", 1) * (1 if graph.facts.mode == "decode" else bound.get("seq", 1))
    held = [p for p in graph.facts.parameters if ".experts." in p.names[0]]
    if not rows and not held:
        return {}
    used = met(graph)
    lost = [p for p in held if p.storage not in used or (graph.facts.mode == "train" and not p.trained)]
    right = bool(rows) and bool(top_k) and set(rows) == {round(tokens * top_k)}
    return {"rows": dict(rows), "tokens": tokens, "top_k": top_k, "right": right, "lost": len(lost)}


def split(graph: Graph) -> Record:
    """The share of the contractions' FLOPs that a plan splits: the model's own, and an inferred one.

    `padded` leaves out products with a vocabulary that the ranks do not divide, which users pad.
    """
    factors = propagate(graph)
    prepared = prepare(factors)
    unresolved = Counter(note.text for note in factors.unresolved)
    words = graph.facts.fact("vocab_size")
    odd = frozenset(id(c.leaf) for c in candidates(factors) if c.leaf.size == words and c.leaf.size % RANKS)
    tried: Record = {}
    padded = 0.0
    own = plan_of(graph, "hf") if graph.facts.tp_plan else None
    for name in (["own"] if own else []) + ["inferred"]:
        try:
            found = given(prepared, RANKS, own) if name == "own" and own else infer(prepared, RANKS, strict=False)
            tried[name] = split_share(prepared, found, frozenset())
            padded = max(padded, split_share(prepared, found, odd))
        except TorchperfError as error:
            tried[name] = "; ".join([error.message, *(f"{key}: {value}" for key, value in error.facts)])
    best = max((share for share in tried.values() if isinstance(share, float)), default=0.0)
    reason = "; ".join(unresolved) or f"plans split {tried}"
    return {
        "ok": best >= 0.95 and not unresolved, "class": "split", "message": reason, "share": best, "padded": padded,
        "plans": tried, "unresolved": dict(unresolved),
    }  # fmt: skip


def split_share(prepared: Prepared, found: Inferred, aside: frozenset[int]) -> float:
    """Of what the ranks could take from each other, the share that they do; products with leaves `aside` left out."""
    total = 0.0
    for count, flops, touched in zip(prepared.counts, prepared.flops, prepared.touched, strict=True):
        total += count * sum(n for n, leaves in zip(flops, touched, strict=True) if not leaves & aside)
    saved = sum(n * b.flops for n, b in zip(prepared.counts, found.placement.blocks, strict=True))
    return float(min(1.0, saved / (total * (1 - 1 / RANKS)))) if total else 0.0


if __name__ == "__main__":
    sys.exit(main())
