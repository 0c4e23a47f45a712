"""How long a capture takes, beside the time that importing torch and transformers takes anyway.

    python scripts/benchmark.py            all rows, best of three
    python scripts/benchmark.py --quick    each once

Every capture runs in a fresh process, so that nothing is warm; `x import` is the time over that of
`import torch, transformers`. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("llama-3.1-8b", "llama-3.1-405b")
# what is measured -> the most it may be: seconds, or bytes for memory
BARS = {
    "capture llama-3.1-8b, sizes given": 4.0,
    "capture llama-3.1-8b, sizes free": 8.0,
    "capture llama-3.1-405b, sizes free": 20.0,
    "memory of the capture of llama-3.1-405b": 600e6,
    "bind llama-3.1-8b": 0.020,
    "bind llama-3.1-405b": 0.020,
    "command from the cache, llama-3.1-8b": 0.6,
    "command from the cache, llama-3.1-405b": 0.6,
    "command from a saved graph, llama-3.1-8b": 0.6,
    "command from a saved graph, llama-3.1-405b": 0.6,
}

IMPORT = """
import time
start = time.perf_counter()
import torch, transformers
from transformers import AutoConfig, PreTrainedModel
seconds = time.perf_counter() - start
"""
CAPTURE = """
import resource, time
from torchperf import configs
from torchperf.frontend import hf, load, store
from torchperf.frontend.run import record
from pathlib import Path
import transformers.models.llama.modeling_llama
name, file = {name!r}, {file!r}
scale = 1 if __import__("sys").platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
start = time.perf_counter()
subject = hf.from_config(configs.load(name), name)
built = time.perf_counter()
if file:
    captured = load.extend(None, subject, "train", {{}})
else:
    record(subject, subject.sizes, "train")
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
if file:
    store.write(Path(file), captured)
seconds, build = end - start, built - start
"""
BIND = """
import time
from pathlib import Path
from torchperf.frontend import store
captured = store.read(Path({file!r}))
seconds, number = 1e9, 0
for batch, seq in ((1, 1000), (4, 4096), (7, 2049), (1, 8192), (2, 777)):
    start = time.perf_counter()
    number += captured.bind(batch=batch, seq=seq).num_ops
    seconds = min(seconds, time.perf_counter() - start)
"""
COMMAND = """
import sys
from torchperf.cli import main
sys.argv = ["torchperf", *{argv!r}]
try:
    main()
except SystemExit as exit:
    code = exit.code
assert code in (0, 1), f"exit code {{code}}"
assert "torch" not in sys.modules and "transformers" not in sys.modules, "torch was imported"
"""


def child(code: str, environment: Mapping[str, str], show: Sequence[str] = ()) -> tuple[float, dict[str, Any]]:
    """Wall seconds of a fresh Python that runs `code`, and the variables of it that are asked for."""
    report = f"\nimport json, sys\njson.dump({{k: globals()[k] for k in {list(show)!r}}}, sys.stderr)"
    start = time.perf_counter()
    given = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}  # compiled once, as installed code is
    done = subprocess.run(
        [sys.executable, "-c", code + (report if show else "")],
        env={**os.environ, **environment, **given}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"a measured process failed:\n{done.stderr}")
    return wall, json.loads(done.stderr.splitlines()[-1]) if show else {}


def best(runs: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(runs))


def rows(runs: int, folder: Path) -> Iterator[tuple[str, float]]:
    """(what, seconds or bytes), first the import."""
    cache = {"TORCHPERF_CACHE": str(folder / "cache")}

    def seconds(code: str) -> float:
        return float(child(code, cache, ["seconds"])[1]["seconds"])

    def wall(code: str) -> float:
        return child(code, cache)[0]

    wall(IMPORT)  # the first import reads the disk
    yield "import torch, transformers", best(runs, partial(seconds, IMPORT))
    for model in MODELS:
        file = str(folder / f"{model}.json")
        code = CAPTURE.format(name=model, file="")
        plain = [child(code, cache, ["seconds", "build"])[1] for _ in range(runs)]
        yield f"build {model}", min(run["build"] for run in plain)
        yield f"capture {model}, sizes given", min(run["seconds"] for run in plain)
        code = CAPTURE.format(name=model, file=file)
        free = [child(code, cache, ["seconds", "peak", "imported"])[1] for _ in range(runs)]
        yield f"capture {model}, sizes free", min(run["seconds"] for run in free)
        yield f"memory of the capture of {model}", min(run["peak"] for run in free)
        yield f"memory of the imports alone, {model}", min(run["imported"] for run in free)
        yield f"bind {model}", best(runs, partial(seconds, BIND.format(file=file)))
    yield "python alone", best(2 * runs, partial(wall, ""))
    for model in MODELS:
        for how, named in (("the cache", model), ("a saved graph", str(folder / f"{model}.json"))):
            argv = ["estimate", named, "--gpu", "h100-sxm-80gb"]
            code = COMMAND.format(argv=argv)
            if how == "the cache":
                wall(code.replace('assert "torch"', 'assert True or "torch"'))  # fills the cache, with torch
            yield f"command from {how}, {model}", best(2 * runs, partial(wall, code))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="each row once, in place of the best of three")
    runs = 1 if parser.parse_args().quick else 3
    missed, unit = 0, 0.0
    print(f"{'':46} {'measured':>10} {'x import':>9} {'bar':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for what, value in rows(runs, Path(folder)):
            unit = unit or value
            bar, memory = BARS.get(what), what.startswith("memory")
            over = bar is not None and value > bar
            missed += over
            ratio = "" if memory else f"{value / unit:.3f}"
            verdict = "" if bar is None else "over" if over else "ok"
            numbers = f"{_shown(value, memory):>10} {ratio:>9} {_shown(bar, memory):>10}"
            print(f"{what:46} {numbers} {verdict}".rstrip(), flush=True)
    sys.exit(1 if missed else 0)


def _shown(value: float | None, memory: bool) -> str:
    if value is None:
        return ""
    return f"{value / 1e6:.0f} MB" if memory else f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


if __name__ == "__main__":
    main()
