"""inference_map.toml: what the sources of measured serving runs state beside their tables, each with its citation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from .map_file import broken, read

FILE = Path(__file__).with_name("inference_map.toml")
Text = Annotated[str, msgspec.Meta(min_length=1)]
SERVINGS = ("static", "closed", "maximal", "forward")
TPOTS = ("step", "latency", "empty")
THROUGHPUTS = ("output", "total", "step")
FIRSTS = ("prompt", "decode")
LAYOUTS = ("", "aiconfigurator")
METRICS = ("ttft", "tpot", "latency", "throughput")
_REGEXES = ("match", "title", "framework", "model", "gpu", "precision")


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of one source: `title` and `framework` are regular expressions over `source_note` and `framework`."""

    key: Text
    title: Text
    framework: str = ""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as a source names it (a regular expression), the accelerator that it is, and the system it sits in."""

    match: Text
    name: Text
    system: Text
    source: Text
    key: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as a source names it (a regular expression), and the bundled config that it is, or why there is none."""

    match: Text
    source: Text
    config: str = ""
    skip: str = ""
    key: tuple[str, ...] = ()


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Formats of weights, activations and cache that a source's word for precision stands for."""

    weights: Text
    activations: Text
    kv: Text
    assumes: tuple[str, ...] = ()


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for the rows of `key` that meet every condition given; a later entry stands before an earlier one.

    model, gpu, precision, framework  regular expressions over the row's cells; note: a text in its notes; ids: rows
    runtime      of the database
    serving      static: one batch from start to end; closed: `batch` clients, each with one request at a time;
                 maximal: as many requests as fit; forward: one pass over the sequence
    tpot         step: mean time between tokens; latency: the whole request over its output tokens;
                 empty: mean over tokens made from an empty context
    throughput   tokens a second over all devices that it counts: output | total (input too) | step (of the decode)
    first        prompt: the pass over the prompt makes the first token; decode: the prompt's last token takes a decode
                 step behind a pass over the others
    batch        sequences at a time, where the row leaves them blank
    mean_length  share of the stated lengths that a request has on average: below 1 lengths differ, else all are alike
    rounds       requests of each client, who all begin at once; 0: the source's loads are steady
    layout       aiconfigurator: degrees stand in the notes
    spec         A: nothing is guessed; B: a secondary knob is; C: a primary one
    leave        metrics that the source did not measure as we mean them
    skip         why these rows are not built
    assumes      what is assumed, told with the row
    """

    key: tuple[str, ...]
    source: Text
    model: str = ""
    gpu: str = ""
    precision: str = ""
    framework: str = ""
    note: str = ""
    ids: tuple[str, ...] = ()
    runtime: str = ""
    serving: str = ""
    tpot: str = ""
    throughput: str = ""
    first: str = ""
    batch: int = 0
    weights: str = ""
    activations: str = ""
    kv: str = ""
    attention: str = ""
    watts: float = 0.0
    mean_length: float = 0.0
    rounds: int = 0
    layout: str = ""
    spec: str = ""
    leave: tuple[str, ...] = ()
    skip: str = ""
    assumes: tuple[str, ...] = ()


class InferenceMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    sources: tuple[Source, ...]
    precisions: dict[str, Format]
    gpus: tuple[Gpu, ...]
    models: tuple[Model, ...]
    settings: tuple[Setting, ...]

    def faults(self) -> list[str]:
        """What the types cannot say: broken regular expressions, unknown words, entries that say nothing."""
        tables = (
            ("sources", self.sources), ("gpus", self.gpus), ("models", self.models), ("settings", self.settings),
        )  # fmt: skip
        faults = list(broken(tables, _REGEXES))
        keys = {source.key for source in self.sources}
        for i, model in enumerate(self.models):
            if bool(model.config) == bool(model.skip):
                faults.append(f"models[{i}]: give `config` or `skip`")
        for i, setting in enumerate(self.settings):
            if not setting.key:
                faults.append(f"settings[{i}].key: names no source")
            faults += [f"settings[{i}].key: no source `{key}`" for key in setting.key if key not in keys]
            faults += [f"settings[{i}].leave: no metric `{name}`" for name in setting.leave if name not in METRICS]
            words = (
                ("serving", SERVINGS), ("tpot", TPOTS), ("throughput", THROUGHPUTS), ("first", FIRSTS),
                ("layout", LAYOUTS), ("spec", ("A", "B", "C")),
            )  # fmt: skip
            for name, known in words:
                word = getattr(setting, name)
                if word and word not in known:
                    faults.append(f"settings[{i}].{name}: `{word}` is not {', '.join(filter(None, known))}")
        return faults


def load_map(path: Path = FILE) -> InferenceMap:
    """The map; raises TorchperfError that names the file and the key at fault."""
    return read(path, InferenceMap)
