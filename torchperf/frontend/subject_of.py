"""Source -> Subject: the place where torch comes in."""

from __future__ import annotations

from .limits import check_config
from .load import Source
from .store import digest
from .subject import Subject


def subject_of(source: Source) -> tuple[Subject, dict[str, str]]:
    """The module that a source names, on meta, and what it was made of: local files, and variables of the
    environment as `$NAME`, each with the SHA-256 of its contents.
    """
    if source.kind == "file":
        from . import user_file

        assert source.path is not None
        with user_file.watched_files() as files:
            subject = user_file.load(source.path, source.entry)
        files.add(str(source.path.resolve()))
        return subject, {name: digest(name) for name in sorted(files)}
    from . import hf
    from .pretrained import hub_config

    config = source.config or hub_config(source.name)
    check_config(config, source.name)
    return hf.from_config(config, source.name), {}
