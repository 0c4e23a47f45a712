"""O14: local layers keep their window, global ones everything. Gemma-3-4B, one sequence of 131,072 tokens.

5 global layers: 2,560 MiB. 29 local layers of 1,024 tokens: 116 MiB. All at full length would be 17,408 MiB. Measured:
2,734 MiB with a window of 1,536. Source: ollama#17037.
"""

from __future__ import annotations

MIB = 2**20
NEED = ("--mode", "inference", "--gpu", "rtx-4090", "--input-len", 131_000, "--output-len", 72)


def test_o14_gemma_3_4b(priced) -> None:
    answer = priced("gemma-3-4b-text", *NEED, "--runtime", "vllm")
    rows = {row["window"]: row for row in answer["kv"]}
    assert {window: row["layers"] for window, row in rows.items()} == {None: 5, 1024: 29}
    assert rows[None]["request_bytes"] == 2560 * MIB
    assert rows[1024]["request_bytes"] == 116 * MIB
    assert 2.6 * 1024 < answer["memory_bytes"]["cache"] / MIB < 2.8 * 1024


def test_o14_a_window_of_1536(priced) -> None:
    """What a runtime with 512 tokens more in each window keeps is between ours and the measured total."""
    answer = priced("gemma-3-4b-text", *NEED, "--runtime", "vllm")
    ours = sum(row["request_bytes"] for row in answer["kv"]) / MIB
    local = next(row["request_bytes"] for row in answer["kv"] if row["window"]) / MIB
    assert ours + local * 512 / 1024 == 2734
