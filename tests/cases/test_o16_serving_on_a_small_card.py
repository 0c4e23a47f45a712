"""O16: Llama-3.1-8B in bf16 on an RTX 3090, vLLM with 0.9 of the device and a profile of 20,000 tokens.

Weights 14.96 GiB; torch sees 23.58 GiB; 3.81 GiB are left for the cache: 1,952 blocks of 16 tokens, 1.56 requests of
20,000. Source: vllm#10517.
"""

from __future__ import annotations

import pytest

GIB = 2**30
NEED = ("llama-3.1-8b", "--mode", "inference", "--gpu", "rtx-3090", "--runtime", "vllm", "--max-batched-tokens", 20_000)


def test_o16_what_is_left(priced) -> None:
    answer = priced(*NEED, "--input-len", 19_000, "--output-len", 1000)
    memory = answer["memory_bytes"]
    assert memory["weights"] / GIB == pytest.approx(14.96, abs=0.005)
    assert memory["usable"] / GIB == pytest.approx(23.58, abs=0.005)
    assert memory["budget"] == pytest.approx(0.9 * memory["usable"])
    assert memory["pool"] / GIB == pytest.approx(3.8, rel=0.1)
    assert answer["max_context"] == pytest.approx(1952 * 16, rel=0.1)
    assert answer["pool_requests"] == pytest.approx(1.56, rel=0.1)
    assert answer["max_concurrency"] == 1


def test_o16_the_verdict(command) -> None:
    result = command("estimate", *NEED, "--input-len", 19_000, "--output-len", 1000)
    assert result.exit_code == 0
    (line,) = (line for line in result.stdout.splitlines() if "max context" in line)
    assert line.startswith("fits: ")
    tokens = int(line.partition("request ")[2].split()[0].replace(",", ""))
    assert tokens == pytest.approx(31_232, rel=0.1)


@pytest.mark.parametrize(
    "how",
    [
        ("--input-len", 31_000, "--output-len", 1000),
        ("--input-len", 100, "--output-len", 10, "--max-model-len", 32_000),
    ],
)
def test_o16_a_request_of_32k_does_not_fit(priced, how: tuple[object, ...]) -> None:
    answer = priced(*NEED, *how)
    assert answer["verdict"] == "does not fit"
    assert answer["max_context"] < 32_000
