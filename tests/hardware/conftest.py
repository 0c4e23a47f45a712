"""A good accelerator file outside the database, for tests that load it or spoil it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchperf.hardware.database import database


@pytest.fixture
def spoiled(tmp_path: Path) -> Callable[..., str]:
    """Writes my.toml: the H100 record with texts replaced, each of which must occur in it; gives its path."""

    def write(*changes: tuple[str, str], kind: str = "accelerators", name: str = "h100-sxm-80gb") -> str:
        text = (database().root / kind / f"{name}.toml").read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        path = tmp_path / "my.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write
