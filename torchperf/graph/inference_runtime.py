"""How a runtime serves, as data: what an engine adds to its kernels, and how it hands out device memory."""

from __future__ import annotations

from dataclasses import dataclass

from .system import Fit, Sourced

LIBRARIES = ("nccl", "trtllm", "vllm_graph", "vllm_eager")
POOLS = ("budget", "free", "exact")


@dataclass(frozen=True, slots=True)
class Serving:
    """What only serving meets.

    constants           fitted together: `layer` seconds a layer and forward pass, `step` seconds a forward pass,
                        `sequence` seconds a sequence and forward pass, that no kernel accounts for;
                        `all_reduce_factor` times the latency of an all_reduce; `request` seconds of a request outside
                        the engine: sent, tokenised, queued. A near constant time a layer is what engines add to their
                        kernels at batch 1 [nemo_llama2]
    all_reduce          library of the all_reduce inside a node: nccl | trtllm | vllm_graph | vllm_eager
    merged              projections of one input run as one product, routing as one kernel, rows of experts are read
                        through an index: see inference_kernels.py
    cuda_graphs         a decode step is replayed with one launch: the host issues no kernel of it
    chunked             prompts are cut to `max_batched_tokens` and run together with decodes; else they go first, alone
    max_batched_tokens  tokens of one forward pass, and of the pass whose activations are kept free
    logit_passes        times that sampling reads or writes the fp32 logits of the tokens sampled
    memory_utilization  share of the device (pool `budget`) or of what weights leave (`free`) that the engine takes
    pool                budget: cache = share of the device - weights - activations - reserve (vLLM)
                        free: cache = share of (device - weights - activations - reserve) (TensorRT-LLM, LMDeploy)
                        exact: as much as is asked for, up to all that is left
    graph_memory        bytes of captured CUDA graphs
    block               tokens of one block of the cache; sequences take whole blocks
    """

    constants: Fit
    all_reduce: str
    merged: bool
    cuda_graphs: bool
    chunked: bool
    max_batched_tokens: Sourced
    logit_passes: Sourced
    memory_utilization: Sourced
    pool: str
    graph_memory: Sourced
    block: Sourced

    @property
    def layer(self) -> float:
        """Seconds a layer and forward pass."""
        return self.constants["layer"]

    @property
    def step(self) -> float:
        """Seconds a forward pass."""
        return self.constants["step"]

    @property
    def sequence(self) -> float:
        """Seconds a sequence and forward pass; 0 where it could not be told from a pass."""
        return dict(self.constants.parameters).get("sequence", 0.0)

    @property
    def request(self) -> float | None:
        """Seconds of a request outside the engine; None where no run of a server tells it."""
        return dict(self.constants.parameters).get("request")

    @property
    def all_reduce_factor(self) -> float:
        """Times the latency of an all_reduce."""
        return self.constants["all_reduce_factor"]
