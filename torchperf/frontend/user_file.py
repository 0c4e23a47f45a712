"""model.py -> module and inputs. The file is code that the user chose to run; it runs on the meta device.

Looked for, in this order: the name given (`model.py:name`), `build_model()` or `get_model()`, a variable `model`, the
single nn.Module subclass of the file that can be built without arguments. Inputs: `get_inputs()` or `example_inputs`.
A function `loss_fn(outputs)` or `get_loss(outputs)` names the loss where forward returns none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from ..graph.errors import TorchperfError
from .live import subject_of_module
from .meta_device import everything_on_meta
from .pretrained import from_pretrained_as_config
from .subject import Subject

_opened: set[str] | None = None
_hooked = False


def _audit(event: str, arguments: Any) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.add(arguments[0])


@contextlib.contextmanager
def watched_files() -> Iterator[set[str]]:
    """Collects the local files that the code inside imports or reads (not those of installed packages)."""
    global _opened, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    before, files = set(sys.modules), set[str]()
    _opened = set()
    asked: set[str] = set()  # environment variables that local code has read
    original = os._Environ.__getitem__

    def read(environment: Any, key: Any) -> Any:
        if isinstance(key, str) and _asked_locally():
            asked.add(key)
        return original(environment, key)

    os._Environ.__getitem__ = read  # type: ignore[method-assign]
    try:
        yield files
    finally:
        os._Environ.__getitem__ = original  # type: ignore[method-assign]
        files.update(f"${name}" for name in asked)
        seen, _opened = _opened, None
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if isinstance(origin, str) and _is_local(origin):
                seen.add(origin)
                del sys.modules[name]  # the next capture reads the file anew
        files.update(str(Path(f).resolve()) for f in seen if _is_local(f) and Path(f).is_file())


def _asked_locally() -> bool:
    """Whether the code that reads the environment, past the standard library's own frames, is the user's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and os.path.basename(frame.f_code.co_filename) in (
        "os.py",
        "_collections_abc.py",
        "<frozen os>",
        "<frozen _collections_abc>",
    ):
        frame = frame.f_back
    return frame is not None and _is_local(frame.f_code.co_filename)


def _is_local(path: str) -> bool:
    try:
        resolved = Path(path).resolve()
    except OSError:
        return False
    if resolved.suffix in (".pyc", ".so") or "__pycache__" in resolved.parts or "site-packages" in resolved.parts:
        return False
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    system = ("/proc", "/sys", "/dev", "/etc", "/usr")
    roots = [*installed, str(Path(__file__).parent.parent), *system]
    return not any(resolved.is_relative_to(root) for root in roots if root)


def load(path: Path, entry: str | None) -> Subject:
    """The Subject that a model file describes; raises TorchperfError naming the file."""
    namespace = _run(path)
    with _errors(path, "building the model"), everything_on_meta(), from_pretrained_as_config(path):
        module = _find_module(namespace, entry, path)
    inputs = namespace.get("get_inputs", namespace.get("example_inputs"))
    name = path.stem if entry is None else f"{path.stem}:{entry}"
    with _errors(path, "making the inputs"):
        subject = subject_of_module(module, inputs, name, str(path))
    loss = namespace.get("loss_fn", namespace.get("get_loss"))
    if callable(loss):
        subject.loss = loss
    return subject


def _run(path: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"_torchperf_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TorchperfError(f"`{path}` is not a Python file", hint="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        with _errors(path, "running the file"), everything_on_meta(), from_pretrained_as_config(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        sys.modules.pop(spec.name, None)
    return vars(module)


@contextlib.contextmanager
def _errors(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except TorchperfError:
        raise
    except SyntaxError as error:
        raise TorchperfError(
            f"`{path}` has a syntax error",
            facts=[("line", f"{error.lineno}: {(error.text or '').strip()}"), ("reason", str(error.msg))],
            hint="mend the line",
        ) from error
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        line = [("line", f"{frames[-1].lineno}: {frames[-1].line}")] if frames else []
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TorchperfError(
            f"`{path}` failed while {doing}",
            facts=[*line, ("reason", f"{type(error).__name__}: {reason}")],
            hint="run the file by itself first; `--debug` shows the traceback",
        ) from error


def _find_module(namespace: dict[str, Any], entry: str | None, path: Path) -> nn.Module:
    if entry is not None:
        if entry not in namespace:
            raise TorchperfError(f"`{path}` defines no `{entry}`", hint=f"it defines: {_names(namespace)}")
        return _as_module(namespace[entry], entry, path)
    for name in ("build_model", "get_model"):
        if callable(namespace.get(name)):
            return _as_module(namespace[name], name, path)
    if isinstance(namespace.get("model"), nn.Module):
        return namespace["model"]  # type: ignore[no-any-return]
    own = namespace.get("__name__")
    classes = {
        name: item
        for name, item in namespace.items()
        if isinstance(item, type) and issubclass(item, nn.Module) and item.__module__ == own
    }
    buildable = {name: item for name, item in classes.items() if not _required(item.__init__)}
    used = _used_by_others(classes)
    tops = {name: item for name, item in buildable.items() if name not in used} or buildable
    if len(tops) == 1:
        ((name, cls),) = tops.items()
        return _as_module(cls, name, path)
    if len(tops) > 1:
        raise TorchperfError(
            f"`{path}` has more than one model",
            facts=[("found", ", ".join(f"`{name}`" for name in sorted(tops)))],
            hint=f"name one: `{path.name}:{sorted(tops)[0]}`, or define `build_model()`",
        )
    if classes:
        name, cls = next((n, c) for n, c in reversed(classes.items()))
        raise TorchperfError(
            f"no model of `{path}` can be built without arguments",
            facts=[(f"{n}", f"needs {', '.join(_required(c.__init__))}") for n, c in classes.items()],
            hint=f"define `def build_model(): return {name}(...)` in the file",
        )
    raise TorchperfError(
        f"no model found in `{path}`",
        facts=[("looked for", "`build_model()`, `get_model()`, `model`, a subclass of nn.Module")],
        hint="define `build_model()` that returns an nn.Module",
    )


def _used_by_others(classes: dict[str, type]) -> set[str]:
    """Names of classes that another class of the file mentions: parts, not the whole."""
    used = set()
    for name, cls in classes.items():
        functions = [f for f in vars(cls).values() if inspect.isfunction(f)]
        mentioned = {word for f in functions for word in (*f.__code__.co_names, *_nested_names(f.__code__))}
        used |= {other for other in classes if other != name and other in mentioned}
    return used


def _nested_names(code: Any) -> set[str]:
    names: set[str] = set()
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= {*constant.co_names, *_nested_names(constant)}
    return names


def _required(function: Any) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _as_module(item: Any, name: str, path: Path) -> nn.Module:
    if isinstance(item, type) and issubclass(item, nn.Module) and (needed := _required(item.__init__)):
        raise TorchperfError(
            f"`{name}` cannot be built without arguments",
            facts=[("in", str(path)), ("needs", ", ".join(needed))],
            hint=f"define `def build_model(): return {name}(...)` in the file",
        )
    module = item if isinstance(item, nn.Module) else item() if callable(item) else None
    if not isinstance(module, nn.Module):
        raise TorchperfError(
            f"`{name}` of `{path}` is no model",
            facts=[("it is", type(module if module is not None else item).__name__)],
            hint="it must be an nn.Module, or a function or class that gives one",
        )
    return module


def _names(namespace: dict[str, Any]) -> str:
    return ", ".join(sorted(n for n in namespace if not n.startswith("_"))[:20]) or "nothing"
