"""`from_pretrained` in a user's file builds from the config alone: a size needs no weights."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import configs
from ..graph.errors import TorchperfError


def config_of(name: str) -> dict[str, Any]:
    """The config that a hub id or folder names: a local folder, a bundled config of that name, or the hub's."""
    folder = Path(name)
    if folder.is_dir() and (folder / "config.json").is_file():
        return read_config(folder / "config.json")
    short = name.rpartition("/")[2].lower()
    for candidate in (short, *(_ALIASES.get(short, ()))):
        if candidate in configs.names():
            return configs.load(candidate)
    return hub_config(name)


_ALIASES = {
    "meta-llama-3-8b": ("llama-3-8b",), "meta-llama-3-70b": ("llama-3-70b",), "llama-2-7b-hf": ("llama-2-7b",),
    "llama-2-13b-hf": ("llama-2-13b",), "llama-2-70b-hf": ("llama-2-70b",), "bert-base-uncased": ("bert-base",),
    "bert-large-uncased": ("bert-large",), "mistral-7b-v0.1": ("mistral-7b",), "mixtral-8x7b-v0.1": ("mixtral-8x7b",),
    "mixtral-8x22b-v0.1": ("mixtral-8x22b",), "bloom": ("bloom-176b",), "vit-base-patch16-224": ("vit-b-16",),
    "falcon-7b-instruct": ("falcon-7b",), "mamba2-2.7b-hf": ("mamba2-2.7b",),
}  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """A config.json as a dict; raises TorchperfError naming the file."""
    try:
        contents = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise TorchperfError(f"cannot read `{path}`", facts=[("reason", str(error))]) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise TorchperfError(f"`{path}` is not JSON", facts=[("reason", str(error))], hint="mend the file") from None
    if not isinstance(contents, dict) or "model_type" not in contents:
        raise TorchperfError(
            f"`{path}` is no model config", facts=[("missing", "`model_type`")], hint="give a transformers config.json"
        )
    contents.pop("torchperf", None)
    return contents


def hub_config(name: str) -> dict[str, Any]:
    """The config of a hub id, fetched by transformers' own loading code."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TorchperfError(
            f"cannot fetch the config of `{name}` from the hub",
            facts=[("reason", reason)],
            hint="without a network give a folder with config.json, a model.py, or a bundled name (`torchperf models`)",
        ) from error
    return dict(config.to_dict())


@contextlib.contextmanager
def from_pretrained_as_config(path: Path) -> Iterator[None]:
    """While the user's file runs, transformers' `from_pretrained` reads the config and no weights."""
    if "transformers" not in sys.modules and b"transformers" not in path.read_bytes():
        yield  # an import of several seconds that this file does not ask for
        return
    try:
        import transformers
        from transformers.models.auto import auto_factory, modeling_auto
    except ImportError:
        yield
        return
    from . import hf

    def load(cls: Any, name: str, *_args: Any, **_kwargs: Any) -> Any:
        if name is None and "config" in _kwargs:
            return hf.build(cls, _kwargs["config"])
        contents = config_of(str(name))
        kind = contents.pop("model_type")
        contents.pop("architectures", None)
        for key in ("torch_dtype", "dtype", "quantization_config"):
            contents.pop(key, None)
        config = _kwargs.get("config") or transformers.AutoConfig.for_model(kind, **contents)
        chosen = cls
        if hasattr(cls, "_model_mapping"):
            chosen = cls._model_mapping[type(config)]
            chosen = chosen[0] if isinstance(chosen, tuple) else chosen
        return hf.build(chosen, config)

    auto = [
        item
        for item in vars(modeling_auto).values()
        if isinstance(item, type) and item.__module__ == modeling_auto.__name__
    ]
    owners = [
        o
        for o in (transformers.PreTrainedModel, auto_factory._BaseAutoModelClass, *auto)
        if "from_pretrained" in vars(o)
    ]
    originals = [owner.__dict__["from_pretrained"] for owner in owners]
    try:
        for owner in owners:
            owner.from_pretrained = classmethod(load)
        yield
    finally:
        for owner, original in zip(owners, originals, strict=True):
            owner.from_pretrained = original
