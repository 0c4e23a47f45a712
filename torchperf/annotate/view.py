"""Ops that move nothing: views, allocations, and questions about a tensor."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import dtype_of

VIEWS = """
    view _unsafe_view _reshape_alias reshape view_as t transpose swapaxes swapdims movedim moveaxis
    permute expand expand_as broadcast_to broadcast_tensors unsqueeze squeeze slice select split
    split_with_sizes tensor_split chunk unsafe_split unsafe_split_with_sizes unsafe_chunk hsplit
    vsplit dsplit unbind detach alias as_strided unfold narrow diagonal linalg_diagonal numpy_T mT
    mH matrix_H adjoint flatten unflatten ravel view_as_real view_as_complex real imag _conj conj
    _neg_view resolve_conj resolve_neg _lazy_clone data set_ lift lift_fresh slice_inverse
    _fw_primal _make_dual _nested_view_from_buffer values indices atleast_1d atleast_2d atleast_3d"""
ALLOCATIONS = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_
    _efficientzerotensor scalar_tensor _pin_memory pin_memory _resize_output_"""
QUESTIONS = """
    sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous size stride dim is_same_size
    is_pinned _has_same_storage_numel _has_compatible_shallow_copy_type _assert_async _assert_scalar
    _functional_assert_async _functional_assert_scalar _assert_tensor_metadata _linalg_check_errors
    sym_constrain_range sym_constrain_range_for_size record_stream result_type can_cast promote_types _version
    _fused_sdp_choice _local_scalar_dense item is_nonzero _print _debug_has_internal_overlap
    _cudnn_rnn_flatten_weight _cudnn_init_dropout_state _use_cudnn_rnn_flatten_weight"""
RANGES = "_record_function_enter _record_function_enter_new _record_function_exit"  # of the profiler


@rule("torchperf.alias", *aten(VIEWS), *aten(ALLOCATIONS), *aten(QUESTIONS), *[f"profiler.{n}" for n in RANGES.split()])
def view(op: Op) -> Work:
    """Another shape of the same bytes, new bytes without contents, or a question

    flops    0        read nothing        write nothing
    ignores  the host's wait for a single element that it asks for
    """
    return Work("view", "none", dtype_of(op))
