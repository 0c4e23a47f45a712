"""Refit what an engine adds to its kernels, from measured runs: seconds a layer, a pass, a sequence, a request, and
times an all_reduce.

    python scripts/fit_inference.py inference.csv                         every runtime that serves
    python scripts/fit_inference.py inference.csv --runtime lmdeploy      one
    python scripts/fit_inference.py inference.csv --dry-run               errors alone, nothing is written

A run is priced without the constants and with each of them; between the two its time is a straight line. The constants
are those of a runtime on all models and devices alike; the errors stored and printed are those of each model's runs
under constants that saw no run of that model. Runs whose primary settings are guessed (spec C) are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "fit")]

from common import write  # noqa: E402
from simplex import Array, Parameters, fit  # noqa: E402

from torchperf import hardware  # noqa: E402
from torchperf.graph.errors import TorchperfError  # noqa: E402
from torchperf.graph.runtime import Runtime  # noqa: E402
from torchperf.validate import rows  # noqa: E402
from torchperf.validate.inference_map import load_map  # noqa: E402
from torchperf.validate.inference_predict import Predictor, planner_key  # noqa: E402
from torchperf.validate.inference_rows import InferenceCase, case_of  # noqa: E402

NAMES = ("layer", "step", "sequence", "request", "all_reduce_factor")
NONE = {"layer": 0.0, "step": 0.0, "sequence": 0.0, "request": 0.0, "all_reduce_factor": 1.0}
PROBES = {"layer": 5e-5, "step": 5e-5, "sequence": 5e-5, "request": 1e-2, "all_reduce_factor": 2.0}
START = {"layer": 4.9e-5, "step": 1e-4, "sequence": 5e-6, "request": 2e-2, "all_reduce_factor": 1.3}
LEAST = {"layer": 1e-7, "step": 1e-7, "sequence": 1e-9, "request": 1e-4, "all_reduce_factor": 0.5}
MOST = {"layer": 5e-4, "step": 5e-2, "sequence": 5e-4, "request": 1.0, "all_reduce_factor": 4.0}
ROUNDS = 4  # each starts where the last ended: the pull to the start is weak in the end
SOURCES = {
    "fastertransformer": "fastertransformer_gpt", "gpt-fast": "gpt_fast", "llama-cpp": "gpu_benchmarks_llm",
    "lmdeploy": "lmdeploy_a100", "sglang": "aiconfigurator", "tensorrt-llm": "aiconfigurator",
    "tensorrt-llm-2023": "nemo_llama2", "tensorrt-llm-2024": "llm_inference_bench", "vllm": "aiconfigurator",
    "vllm-2024": "llm_inference_bench", "vllm-rocm-2024": "llm_inference_bench",
}  # fmt: skip
METRICS = {"static": ("ttft", "tpot", "latency"), "closed": ("ttft", "tpot"), "maximal": ()}


@dataclass(frozen=True, slots=True)
class Line:
    """A measured figure, seconds, and ours: `base`, and by constant how much one more of it adds."""

    case: InferenceCase
    metric: str
    measured: float
    base: float
    slopes: Mapping[str, float]


def with_constants(name: str, constants: Mapping[str, float]) -> Runtime:
    """The runtime under these constants."""
    found = hardware.load_runtime(name)
    if found.serving is None:
        return found
    fitted = replace(found.serving.constants, parameters=tuple(constants.items()))
    return replace(found, serving=replace(found.serving, constants=fitted))


def lines_of(cases: Sequence[InferenceCase]) -> list[Line]:
    """Every figure of the cases that can be priced."""
    lines: list[Line] = []
    plain = Predictor(lambda name: with_constants(name, NONE))
    probes = {
        name: Predictor(lambda runtime, name=name: with_constants(runtime, {**NONE, name: PROBES[name]}))  # type: ignore[misc]
        for name in NAMES
    }
    for case in sorted(cases, key=lambda case: tuple(map(str, planner_key(case)))):
        metrics = [m for m in METRICS[case.serving] if m in case.measured]
        if not metrics:
            continue
        try:
            base = plain(case)
            more = {name: probe(case) for name, probe in probes.items() if _matters(name, case)}
        except (TorchperfError, ValueError) as error:
            print(f"{case.id}: {error}", file=sys.stderr)
            continue
        for m in metrics:
            b = base.figure(m)
            slopes = {name: (found.figure(m) - b) / (PROBES[name] - NONE[name]) for name, found in more.items()}
            lines.append(Line(case, m, case.measured[m], b, slopes))
    return lines


def _matters(name: str, case: InferenceCase) -> bool:
    return {"all_reduce_factor": case.degrees.tp > 1, "request": case.serving == "closed"}.get(name, True)


def predicted(lines: Sequence[Line], constants: Mapping[str, float]) -> Array:
    """Seconds of every line under these constants."""
    names = list(constants)
    slopes = np.array([[x.slopes.get(name, 0.0) for name in names] for x in lines])
    more = np.array([constants[name] - NONE[name] for name in names])
    return np.asarray(np.array([x.base for x in lines]) + slopes @ more)


def fitted(lines: Sequence[Line]) -> Parameters:
    """The constants that these lines tell; what none of them meets is left out, but for the factor, which is 1."""
    start = {name: START[name] for name in NAMES if any(x.slopes.get(name) for x in lines)}
    measured = np.array([x.measured for x in lines])
    for _ in range(ROUNDS):
        start, _ = fit(lambda p: predicted(lines, p), measured, start, MOST, LEAST)
    return {name: float(f"{value:.3g}") for name, value in {"all_reduce_factor": 1.0, **start}.items()}


def held_out(lines: Sequence[Line]) -> Array:
    """Signed errors of each model's lines under constants fitted on the other models."""
    errors = np.full(len(lines), np.nan)
    for model in sorted({x.case.model for x in lines}):
        held = np.array([x.case.model == model for x in lines])
        rest = [x for x, out in zip(lines, held, strict=True) if not out]
        if rest:
            own = [x for x, out in zip(lines, held, strict=True) if out]
            errors[held] = predicted(own, fitted(rest)) / [x.measured for x in own] - 1
    return errors


def described(errors: Array) -> str:
    known = np.abs(errors[~np.isnan(errors)])
    if not len(known):
        return "one model: nothing held out"
    return (
        f"mean {known.mean():.1%}, median {np.median(known):.1%}, p90 {np.percentile(known, 90):.1%}, "
        f"max {known.max():.1%}"
    )  # fmt: skip


def report(name: str, lines: Sequence[Line], constants: Parameters, held: Array) -> None:
    measured = np.array([x.measured for x in lines])
    errors = predicted(lines, constants) / measured - 1
    print(f"{name}: {len(lines)} figures, " + ", ".join(f"{k} {v:.3g}" for k, v in constants.items()))
    print(f"  in sample: {described(errors)}; held out: {described(held)}")
    labels: dict[str, Callable[[Line], str]] = {
        "metric": lambda x: x.metric, "source": lambda x: x.case.key, "gpu": lambda x: x.case.gpu,
        "model": lambda x: x.case.model,
    }  # fmt: skip
    for label, of in labels.items():
        for group in sorted({of(x) for x in lines}):
            own = errors[[of(x) == group for x in lines]]
            print(f"    {label} {group} ({len(own)}): {described(own)}; signed median {np.median(own):+.1%}")


def text_of(text: str, lines: Sequence[Line], constants: Parameters, held: Array) -> str:
    """The runtime's file with its [serving.constants] replaced, the last table of the file."""
    head, mark, _ = text.partition("[serving.constants]\n")
    if not mark:
        raise TorchperfError("no [serving.constants] in the file", hint="write the table once by hand")
    known = np.abs(held[~np.isnan(held)])
    if not len(known):
        raise TorchperfError("runs of one model alone: nothing can be held out", hint="keep the constants assumed")
    groups: dict[str, int] = {}
    for x in lines:
        groups[x.case.key] = groups.get(x.case.key, 0) + 1
    values = ", ".join(f"{name} = {constants[name]!r}" for name in NAMES if name in constants)
    sources = ", ".join(f"{key} {n}" for key, n in sorted(groups.items()))
    told = f"{len(lines)} figures by source: {sources}; errors of each model under constants fitted on the others"
    for name, value in constants.items():
        if value <= 1.05 * LEAST[name] or value >= 0.99 * MOST[name]:
            told += f"; {name} is at the bound of the fit"
    return head + mark + "\n".join(
        [
            f"parameters = {{ {values} }}", f'rows = "{told}"', f'range = "{_range(lines)}"',
            f"median_error = {np.median(known):.3f}", f"p90_error = {np.percentile(known, 90):.3f}",
            f'source = "{SOURCES[lines[0].case.runtime]}"', 'basis = "fitted"', "",
        ]
    )  # fmt: skip


def _range(lines: Iterable[Line]) -> str:
    cases = [x.case for x in lines]
    gpus = ", ".join(sorted({case.gpu for case in cases}))
    batch, tp = [case.batch for case in cases], [case.degrees.tp for case in cases]
    models = len({case.model for case in cases})
    return f"{models} models, {gpus}, batch {min(batch)} to {max(batch)}, TP {min(tp)} to {max(tp)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="CSV of measured inference runs")
    parser.add_argument("--runtime", action="append", help="one runtime; may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    chosen = parser.parse_args(arguments)
    known = load_map()
    found = [case_of(cells, known) for cells in rows.read(chosen.data)]
    cases = [c for c in found if isinstance(c, InferenceCase) and c.spec != "C" and c.serving != "forward"]
    for name in chosen.runtime or sorted({case.runtime for case in cases}):
        lines = lines_of([case for case in cases if case.runtime == name])
        if not lines:
            print(f"{name}: no runs", file=sys.stderr)
            continue
        constants, held = fitted(lines), held_out(lines)
        report(name, lines, constants, held)
        if not chosen.dry_run:
            path = ROOT / "hardware_db" / "runtimes" / f"{name}.toml"
            write(path, text_of(path.read_text(encoding="utf-8"), lines, constants, held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
