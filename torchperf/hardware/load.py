"""From a name or a file to a checked noun; what a file names is loaded with it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..graph.errors import TorchperfError
from ..graph.runtime import Runtime
from ..graph.system import Accelerator, Fit, Interconnect, Sourced, System
from . import schema
from .database import Database, database
from .record import Record


def accelerator_names() -> tuple[str, ...]:
    """The accelerators of the database, sorted."""
    return database().names("accelerators")


def interconnect_names() -> tuple[str, ...]:
    """The interconnects of the database, sorted."""
    return database().names("interconnects")


def system_names() -> tuple[str, ...]:
    """The systems of the database, sorted."""
    return database().names("systems")


def runtime_names() -> tuple[str, ...]:
    """The runtimes of the database, sorted."""
    return database().names("runtimes")


def load_accelerator(name_or_path: str) -> Accelerator:
    """The accelerator of that name, alias or file; a TorchperfError tells every fault of the file."""
    db = database()
    return _accelerator(db, db.find("accelerators", name_or_path))


def load_interconnect(name_or_path: str) -> Interconnect:
    """The interconnect of that name, alias or file; a TorchperfError tells every fault of the file."""
    db = database()
    return _interconnect(db, db.find("interconnects", name_or_path))


def load_runtime(name_or_path: str) -> Runtime:
    """The runtime of that name, alias or file; a TorchperfError tells every fault of the file."""
    db = database()
    record = db.record(db.find("runtimes", name_or_path))
    runtime = schema.runtime(record)
    _finish(record)
    return runtime


def load_system(name_or_path: str) -> System:
    """The system of that name, alias or file, with all that it names (by name, or by a path from itself)."""
    db = database()
    return _system(db, db.find("systems", name_or_path))


def single(accelerator: Accelerator) -> System:
    """That device alone: one per node, no scale-up link, no network."""
    one = Sourced(1.0, "1", "derived", "torchperf_derived", "the device alone", "per_node")
    return System(
        name=f"single-{accelerator.name}",
        aliases=(),
        accelerator=accelerator,
        accelerators_per_node=one,
        scale_up=None,
        scale_out=None,
        nics_per_node=replace(one, value=0.0),
        host_memory=None,
        host_link=accelerator.host_link,
        file=accelerator.file,
    )


def system_for(accelerator: Accelerator, num_gpus: int) -> System:
    """The device alone for one GPU, else the one system of the database that is built of it.

    A TorchperfError when the database has no such system or more than one.
    """
    if num_gpus == 1:
        return single(accelerator)
    db = database()
    found = [path for path, names in db.texts("systems", "accelerator") if accelerator.name in names]
    if len(found) == 1:
        return replace(_system(db, found[0]), accelerator=accelerator)
    if found:
        names = ", ".join(f"`{path.stem}`" for path in found)
        message = f"`{accelerator.name}` comes in more than one system: {names}"
        raise TorchperfError(message, hint="name the system itself")
    names = ", ".join(f"`{name}`" for name in db.names("systems"))
    raise TorchperfError(
        f"no system is known that joins {num_gpus} of `{accelerator.name}`",
        facts=(("where", db.shown(db.root / "systems")),),
        hint=f"give a system file that names `{accelerator.name}`, or choose one of: {names}",
    )


def _finish(record: Record) -> None:
    record.close()
    record.faults.check()


def _reference(db: Database, record: Record, key: str, kind: str, base: Path) -> Path:
    """The file that a key names; an unknown one is a fault of this file."""
    name = record.text(key)
    return _known(db, record, key, kind, name, base) if name else base


def _known(db: Database, record: Record, key: str, kind: str, name: str, base: Path) -> Path:
    try:
        return db.find(kind, name, base)
    except TorchperfError as error:
        record.faults.add(key, error.message + (f" ({error.hint})" if error.hint else ""))
        return base


def _interconnect(db: Database, path: Path) -> Interconnect:
    record = db.record(path)
    fits_from = _fits_from(db, record, "interconnects")
    link = schema.interconnect(record)
    _finish(record)
    return replace(link, fits=_fits(db, "interconnects", link.name, fits_from), fits_from=fits_from)


def _accelerator(db: Database, path: Path) -> Accelerator:
    record = db.record(path)
    host_link = _reference(db, record, "host_link", "interconnects", path.parent)
    fits_from = _fits_from(db, record, "accelerators")
    partly = schema.accelerator(record)
    _finish(record)
    device = partly(host_link=_interconnect(db, host_link), fits_from=fits_from)
    inside = {fit.name for fit in device.fits}  # what the file itself gives stands
    others = (fit for fit in _fits(db, "accelerators", device.name, fits_from) if fit.name not in inside)
    return replace(device, fits=(*device.fits, *others))


def _fits_from(db: Database, record: Record, kind: str) -> tuple[str, ...]:
    """The names of the records that `fits_from` lists, each looked up."""
    return tuple(_known(db, record, "fits_from", kind, name, Path()).stem for name in record.texts("fits_from"))


def _fits(db: Database, kind: str, name: str, fits_from: tuple[str, ...]) -> tuple[Fit, ...]:
    """Its own fits; for a name that it lacks that of the first of `fits_from` that has it, as assumed.

    The `fits_from` of those others are not followed.
    """
    found: dict[str, Fit] = {}
    for family in schema.FAMILIES[kind]:
        for owner in (name, *fits_from):
            path = db.root / "fits" / family / f"{owner}.toml"
            for fit in _family(db, path, family) if path.is_file() else ():
                found.setdefault(fit.name, fit if owner == name else replace(fit, basis="assumed"))
    return tuple(found.values())


def _family(db: Database, path: Path, family: str) -> tuple[Fit, ...]:
    return _family_of(db, path, family, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)  # several records borrow from one file
def _family_of(db: Database, path: Path, family: str, stamp: int) -> tuple[Fit, ...]:
    record = db.record(path)
    fits = schema.fits(record, family)
    _finish(record)
    return fits


def _system(db: Database, path: Path) -> System:
    record, base = db.record(path), path.parent
    device = _reference(db, record, "accelerator", "accelerators", base)
    host = _reference(db, record, "host_link", "interconnects", base)
    links = [
        _reference(db, record, key, "interconnects", base) if record.has(key) else None
        for key in ("scale_up", "scale_out")
    ]
    system = schema.system(record)
    _finish(record)
    up, out = (_interconnect(db, link) if link else None for link in links)
    loaded = _accelerator(db, device)
    return system(accelerator=loaded, scale_up=up, scale_out=out, host_link=_interconnect(db, host))
