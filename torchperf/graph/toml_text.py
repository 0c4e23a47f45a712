"""TOML and JSON out of a file's bytes: whatever they hold, a table or one TorchperfError."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from .errors import TorchperfError

MAX_BYTES = 2**24  # of a file that a person writes


def parsed(data: bytes, shown: str, kind: str = "TOML") -> Any:
    """What the bytes of a file say; `shown` names it in the error, `kind` is TOML or JSON."""
    if len(data) > MAX_BYTES:
        raise TorchperfError(
            f"`{shown}` is too large: {len(data):,} bytes, more than {MAX_BYTES:,}", hint=f"give a {kind} file"
        )
    try:
        text = data.decode()
        return json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise TorchperfError(f"`{shown}` is not {kind}: not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise TorchperfError(f"`{shown}` is not {kind}: nested too deep") from None
    except ValueError as error:  # tomllib's and json's own are of this kind; so is that of a number of many digits
        what = str(error).splitlines()[0]
        raise TorchperfError(f"`{shown}` is not {kind}: {what[:1].lower()}{what[1:]}") from None
