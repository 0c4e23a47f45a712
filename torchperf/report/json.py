"""Answers as dicts ready for JSON. Keys carry units: `_s`, `_bytes`, `_per_s`; shares are plain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchperf.graph.estimate import Estimate, Flops, Memory, Mfu, Run, Share
from torchperf.graph.graph import Capture
from torchperf.graph.inspection import Inspection, MfuReport
from torchperf.graph.runtime import Runtime
from torchperf.graph.system import Accelerator, System

from .confidence import confidence_dict
from .record import Hardware, groups
from .suggestion import advice, suggestion_dict


def estimate_dict(e: Estimate) -> dict[str, Any]:
    """Every figure of an estimate; lists are whole."""
    return {
        "model": e.model,
        "mode": e.mode,
        "gpu": e.gpu,
        "num_gpus": e.num_gpus,
        "system": e.system,
        "plan": asdict(e.plan) | {"pp_split": list(e.plan.pp_split)},
        "sizes": dict(e.sizes),
        "precision": e.precision,
        "optimizer": e.optimizer,
        "recompute": e.recompute,
        "runtime": e.runtime,
        "parameters": e.parameters,
        "trainable_parameters": e.trainable_parameters,
        "verdict": e.verdict,
        "margin": e.memory.margin,
        "margin_bytes": e.memory.usable - e.memory.device,
        "memory_bytes": _memory(e.memory),
        "memory_peak_at": e.memory.peak_at,
        "micro_batches_in_flight": e.memory.in_flight,
        "stages": [
            {"memory_bytes": _memory(m), "micro_batches_in_flight": m.in_flight, "micro_batches_delayed": m.delayed}
            for m in e.stages
        ],
        "bytes_per_parameter": dict(e.memory.bytes_per_parameter),
        "step_time_s": e.step_time_s,
        "device_time_s": e.device_time_s,
        "host_time_s": e.host_time_s,
        "phase_time_s": dict(e.phase_time_s),
        "bubble_s": e.bubble_s,
        "run": None if e.run is None else _run(e.run),
        "communication": {c.axis: {"exposed_s": c.exposed, "hidden_s": c.hidden} for c in e.communication},
        "compute_slowed_s": e.slowed_s,
        "roofline_time_s": e.roofline_time_s,
        "validated": confidence_dict(e.confidence),
        "tokens_per_step": e.tokens_per_step,
        "tokens_per_s_per_gpu": e.tokens_per_s,
        "tokens_per_s": e.tokens_per_s * e.num_gpus,
        "samples_per_s_per_gpu": e.samples_per_s,
        "flops": _flops(e.flops),
        "flops_noncausal": _flops(e.flops_noncausal),
        "peak_flops_per_s": e.peak_flops_per_s,
        "mfu": [_mfu(m) for m in e.mfu],
        "hfu": [_mfu(m) for m in e.hfu],
        "time_by_kind": [_share(s) for s in e.by_kind],
        "time_by_module": [_share(s) for s in e.by_module],
        "time_by_bound": [_share(s) for s in e.by_bound],
        "top_kernels": [_share(s) for s in e.top_kernels],
        "unpriced": [
            {"op": u.op, "calls": u.calls, "bytes": u.nbytes, "share_of_bytes": u.share_of_bytes} for u in e.unpriced
        ],
        "guesses": list(e.guesses),
        "assumptions": list(e.assumptions),
        "suggestions": [suggestion_dict(e, s) for s in e.suggestions],
        "advice": list(advice(e)),
        "sources": list(e.sources),
    }


def inspection_dict(i: Inspection) -> dict[str, Any]:
    """What a model is, a row a module."""
    return {
        "model": i.model,
        "model_class": i.model_class,
        "mode": i.mode,
        "sizes": dict(i.sizes),
        "parameters": i.parameters,
        "trainable_parameters": i.trainable_parameters,
        "modules": [
            {
                "module": row.module,
                "calls": row.calls,
                "parameters": row.parameters,
                "flops": {"forward": row.flops_forward, "backward": row.flops_backward},
                "bytes": row.nbytes,
                "activation_bytes": row.activation_bytes,
            }
            for row in i.rows
        ],
        "guesses": list(i.guesses),
        "assumptions": list(i.assumptions),
    }


def capture_dict(capture: Capture) -> dict[str, Any]:
    """What was captured: the model, its sizes with their defaults, and what each graph records and where."""
    facts = capture.facts
    return {
        "model": facts.model,
        "model_class": facts.model_class,
        "mode": facts.mode,
        "parameters": sum(parameter.numel for parameter in facts.parameters),
        "sizes": dict(facts.sizes),
        "limits": dict(facts.limits),
        "fixed": facts.fixed,
        "graphs": [
            {
                "ops": graph.num_ops,
                "blocks": len(graph.blocks),
                "ranges": [_range(*r) for r in graph.facts.ranges],
            }
            for graph in capture.graphs
        ],
        "unattributed": facts.unattributed,
        "guesses": list(facts.guesses),
        "assumptions": list(facts.assumptions),
        "versions": dict(facts.versions),
    }


def _range(size: str, low: int, high: int, step: int) -> dict[str, Any]:
    return {"size": size, "low": low, "high": None if high == -1 else high, "step": step}


def mfu_dict(r: MfuReport) -> dict[str, Any]:
    """Utilisation in each convention with the rate reached; the cost where tokens are known, else null."""
    return {
        "model": r.model,
        "gpu": r.gpu,
        "num_gpus": r.num_gpus,
        "precision": r.precision,
        "parameters": r.parameters,
        "parameters_input_embedding": r.parameters_input_embedding,
        "seq_len": r.seq_len,
        "tokens_per_s_per_gpu": r.tokens_per_s_per_gpu,
        "peak_flops_per_s": r.peak_flops_per_s,
        "mfu": [_mfu(m) | {"flops_per_s_per_gpu": m.flops_per_token * r.tokens_per_s_per_gpu} for m in r.mfu],
        "hfu": [_mfu(m) | {"flops_per_s_per_gpu": m.flops_per_token * r.tokens_per_s_per_gpu} for m in r.hfu],
        "tokens": r.tokens,
        "wall_time_s": r.seconds,
        "days": r.days,
        "gpu_hours": r.gpu_hours,
        "price_dollars_per_gpu_hour": r.price_per_gpu_hour,
        "dollars": r.dollars,
        "goodput": None if r.wall_s is not None else r.goodput,
        "assumptions": list(r.assumptions),
    }


def hardware_dict(record: Hardware) -> dict[str, Any]:
    """A hardware record: what it is, and each value with its reference, in base units."""
    facts: dict[str, Any] = {
        "kind": type(record).__name__.lower(),
        "name": record.name,
        "aliases": list(record.aliases),
    }
    if isinstance(record, Accelerator):
        facts |= {"vendor": record.vendor, "architecture": record.architecture, "year": record.year}
        facts |= {
            "form_factor": record.form_factor,
            "fits": [asdict(fit) | {"parameters": dict(fit.parameters)} for fit in record.fits],
        }
    elif isinstance(record, System):
        links = (
            ("scale_up", record.scale_up),
            ("scale_out", record.scale_out),
            ("host_link", record.host_link),
        )
        facts |= {"accelerator": record.accelerator.name} | {key: link.name if link else None for key, link in links}
    elif isinstance(record, Runtime):
        facts |= {"description": record.description, "fused": record.fused, "attention": record.attention}
    values = {f"{group}.{key}".lstrip("."): asdict(s) for group, _, rows in groups(record) for key, s in rows}
    return {**facts, "file": record.file, "values": values}


def _memory(m: Memory) -> dict[str, int]:
    return {
        "parameters": m.parameters,
        "buffers": m.buffers,
        "gradients": m.gradients,
        "optimizer": m.optimizer,
        "activations": m.activations,
        "logits_loss": m.logits_loss,
        "temporary": m.temporary,
        "gathered": m.gathered,
        "buckets": m.buckets,
        "peak": m.peak,
        "reserve": m.reserve,
        "reserved": m.reserved,
        "context": m.context,
        "device": m.device,
        "usable": m.usable,
        "host": m.host,
    }


def _run(r: Run) -> dict[str, float | None]:
    return {
        "tokens": r.tokens, "steps": r.steps, "goodput": r.goodput, "time_s": r.seconds, "days": r.days,
        "gpu_hours": r.gpu_hours, "price_dollars_per_gpu_hour": r.price_per_gpu_hour, "dollars": r.dollars,
    }  # fmt: skip


def _flops(f: Flops) -> dict[str, int]:
    return {"forward": f.forward, "backward": f.backward, "recompute": f.recompute}


def _mfu(m: Mfu) -> dict[str, Any]:
    return {"convention": m.convention, "value": m.value, "flops_per_token": m.flops_per_token}


def _share(s: Share) -> dict[str, Any]:
    return {
        "name": s.name, "time_s": s.seconds, "calls": s.calls, "flops": s.flops, "bytes": s.nbytes,
        "bound": s.bound, "phase": s.phase, "detail": s.detail,
    }  # fmt: skip
