"""InferenceEstimate as a dict ready for JSON. Keys carry units: `_s`, `_bytes`, `_per_s`; shares are plain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchperf.graph.estimate import Share
from torchperf.graph.inference import Burst, InferenceEstimate, Served, ServingMemory

from .confidence import confidence_dict
from .explanation_json import KEY, explanation_dict
from .suggestion import serving_suggestion_dict


def inference_dict(e: InferenceEstimate) -> dict[str, Any]:
    """Every figure of an estimate of inference; lists are whole."""
    return {
        "model": e.model,
        "mode": "inference",
        "gpu": e.gpu,
        "num_gpus": e.num_gpus,
        "system": e.system,
        "runtime": e.runtime,
        "plan": asdict(e.plan) | {"pp_split": list(e.plan.pp_split), "disaggregated": _pair(e.disaggregated)},
        "precision": asdict(e.precision),
        "request": asdict(e.request) | {"known": e.request.known, "tokens_per_step": e.request.tokens_per_step},
        "batch": e.batch,
        "parameters": e.parameters,
        "active_parameters": e.active_parameters,
        "verdict": e.verdict,
        "ttft_s": e.served.ttft,
        "tpot_s": e.served.tpot,
        "itl_worst_s": e.served.itl_worst,
        "latency_s": e.served.latency,
        "tokens_per_s_per_user": 1 / e.served.tpot if e.served.tpot else None,
        "tokens_per_s_per_gpu": e.tokens_per_s_per_gpu,
        "tokens_per_s": e.tokens_per_s,
        "requests_per_s_per_engine": e.served.requests_per_s,
        "concurrency": e.served.concurrency,
        "share_of_time_with_prefill": e.served.busy,
        "simulated": None if e.simulated is None else _served(e.simulated),
        "burst": None if e.burst is None else _burst(e.burst),
        "prefill_s": e.prefill_s,
        "decode_first_s": e.decode_first_s,
        "decode_last_s": e.decode_last_s,
        "decode_mean_s": e.decode_mean_s,
        "read_bound_s": e.read_bound_s,
        "prefill_bound_s": e.prefill_bound_s,
        "validated": confidence_dict(e.confidence),
        "kv_bytes_per_token": e.kv_bytes_per_token,
        "kv_bytes_per_token_per_gpu": e.kv_bytes_per_token_per_gpu,
        "kv": [
            {
                "kind": row.kind,
                "layers": row.layers,
                "window": row.window or None,
                "state_bytes" if row.kind == "state" else "token_bytes": row.token_bytes,
                "request_bytes": row.request_bytes,
            }
            for row in e.cache
        ],
        "max_concurrency": e.max_concurrency,
        "pool_requests": e.pool_requests,
        "max_context": e.max_context,
        "positions": e.positions,
        "memory_bytes": _memory(e.memory),
        "prefill_parts_s": dict(e.prefill_parts),
        "decode_parts_s": dict(e.decode_parts),
        "prefill_operators": [_share(op) for op in e.prefill_ops],
        "decode_operators": [_share(op) for op in e.decode_ops],
        "definitions": dict(e.definitions),
        "unpriced": [
            {"op": u.op, "calls": u.calls, "bytes": u.nbytes, "share_of_bytes": u.share_of_bytes} for u in e.unpriced
        ],
        "guesses": list(e.guesses),
        "assumptions": list(e.assumptions),
        "suggestions": [serving_suggestion_dict(e, s) for s in e.suggestions],
        "sources": list(e.sources),
        KEY: None if e.explanation is None else explanation_dict(e.explanation),
    }


def _pair(found: tuple[int, int] | None) -> dict[str, int] | None:
    return None if found is None else {"prefill_engines": found[0], "decode_engines": found[1]}


def _served(s: Served) -> dict[str, float]:
    return {
        "ttft_s": s.ttft,
        "tpot_s": s.tpot,
        "itl_worst_s": s.itl_worst,
        "latency_s": s.latency,
        "tokens_per_s_per_engine": s.tokens_per_s,
        "requests_per_s_per_engine": s.requests_per_s,
        "concurrency": s.concurrency,
        "share_of_time_with_prefill": s.busy,
    }


def _burst(b: Burst) -> dict[str, float]:
    return {"requests": b.requests, "ttft_s": b.mean, "ttft_last_s": b.last}


def _memory(m: ServingMemory) -> dict[str, int]:
    return {
        "stage": m.stage,
        "weights": m.weights,
        "buffers": m.buffers,
        "activations": m.activations,
        "reserve": m.reserve,
        "cuda_graphs": m.graphs,
        "pool": m.pool,
        "cache": m.cache,
        "usable": m.usable,
        "budget": m.budget,
    }


def _share(s: Share) -> dict[str, Any]:
    return {
        "name": s.name, "dims": s.detail, "calls": s.calls, "time_s": s.seconds, "flops": s.flops, "bytes": s.nbytes,
        "bound": s.bound,
    }  # fmt: skip
