"""Source -> Subject: the place where torch comes in."""

from __future__ import annotations

from .load import Source
from .subject import Subject


def subject_of(source: Source) -> tuple[Subject, dict[str, str]]:
    """The module that a source names, on meta, and the local files it was made of (path -> SHA-256)."""
    if source.kind == "file":
        from . import user_file

        assert source.path is not None
        with user_file.watched_files() as files:
            subject = user_file.load(source.path, source.entry)
        files.add(str(source.path.resolve()))
        return subject, {path: user_file.digest(path) for path in sorted(files)}
    from . import hf
    from .pretrained import hub_config

    return hf.from_config(source.config or hub_config(source.name), source.name), {}
