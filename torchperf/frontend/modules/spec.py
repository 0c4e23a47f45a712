"""A model by its dims, and its capture. torch comes in only where nothing on disk answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graph.errors import TorchperfError
from ...graph.graph import Capture
from .. import store
from ..limits import check_config

if TYPE_CHECKING:
    from ..subject import Subject

KINDS = ("transformers", "gpt")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that dims alone make.

    kind     transformers: `config` is the contents of a config.json; gpt: the fields of `gpt.Gpt`
    mtp      layers of multi-token prediction behind a transformers model, each with its own pass through the head
    config   JSON text of the config, keys sorted, so that equal specs are equal
    """

    name: str
    kind: str
    config: str
    mtp: int = 0

    @classmethod
    def of(cls, name: str, kind: str, config: Mapping[str, Any], mtp: int = 0) -> ModelSpec:
        """The spec of a config; raises TorchperfError for a kind that is not known."""
        if kind not in KINDS:
            raise TorchperfError(f"unknown kind of model `{kind}`", facts=[("model", name)], hint=", ".join(KINDS))
        return cls(name, kind, json.dumps(dict(config), sort_keys=True), mtp)

    @property
    def contents(self) -> dict[str, Any]:
        """The config as a dict."""
        found = json.loads(self.config)
        assert isinstance(found, dict)
        return found


def capture_of(spec: ModelSpec, *, batch: int = 1, seq: int = 2048) -> Capture:
    """The training capture of the model, holding `batch` and `seq`: from this process, the cache, or captured now."""
    found = _known.get(spec)
    sizes = {"batch": batch, "seq": seq}
    if found is None or found.find(sizes) is None:
        found = _known[spec] = _load(spec, sizes)
    return found


_known: dict[ModelSpec, Capture] = {}


def _load(spec: ModelSpec, sizes: Mapping[str, int]) -> Capture:
    """Of the regimes of sizes only the one asked for is captured: the others are left until they are."""
    name = store.key("module", spec.kind, spec.config, str(spec.mtp), "train", _own_code())
    known = store.cached(name)
    if known is not None and known[0].find(sizes) is not None:
        return known[0]
    from ..capture import capture

    graphs = known[0].graphs if known else ()
    found = Capture((*graphs, capture(subject_of(spec), "train", sizes)))
    store.keep(name, found, {})
    return found


def subject_of(spec: ModelSpec) -> Subject:
    """The module of a spec, on meta, with its inputs."""
    check_config(spec.contents, spec.name)
    if spec.kind == "transformers":
        from .. import hf

        if spec.mtp:
            from . import mtp

            return mtp.subject(spec.name, spec.contents, spec.mtp)
        return hf.from_config(spec.contents, spec.name)
    from . import gpt

    config = spec.contents
    unknown = set(config) - {field.name for field in dataclasses.fields(gpt.Gpt)}
    if unknown:
        raise TorchperfError(
            f"a `gpt` has no dim {', '.join(f'`{name}`' for name in sorted(unknown))}", facts=[("model", spec.name)]
        )
    return gpt.subject(spec.name, gpt.Gpt(**config))


def num_parameters(spec: ModelSpec) -> int:
    """Parameters of the module, tied ones once; nothing is captured."""
    return sum(parameter.numel() for parameter in subject_of(spec).module.parameters())


@lru_cache(maxsize=1)
def _own_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
