"""Ops that copy, gather, sort or create: no arithmetic worth the name, bytes decide."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import moved, part, read, read_except, shape, written

COPIES = """
    clone contiguous cat concat concatenate stack _stack hstack vstack dstack column_stack repeat
    tile roll flip fliplr flipud rot90 constant_pad_nd pad _pad_circular _pad_enum tril triu
    slice_backward select_backward diagonal_backward unfold_backward as_strided_scatter
    slice_scatter select_scatter diagonal_scatter diag_embed diag diagflat block_diag
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
    reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
    replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward im2col
    col2im pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle repeat_interleave
    meshgrid cartesian_prod _reshape_copy view_copy expand_copy permute_copy transpose_copy t_copy
    slice_copy select_copy split_copy split_with_sizes_copy unbind_copy detach_copy alias_copy
    as_strided_copy unfold_copy squeeze_copy unsqueeze_copy diagonal_copy view_as_real_copy
    view_as_complex_copy lift_fresh_copy _reshape_alias_copy narrow_copy _chunk_cat _to_cpu
    _foreach_clone fill_diagonal_ lu_unpack _nested_from_padded _coalesce to_padded_tensor
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward"""
CREATIONS = """
    zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full arange range linspace
    logspace eye tril_indices triu_indices zero zero_ fill fill_ vander _foreach_zero
    bartlett_window blackman_window hamming_window hann_window kaiser_window fft_fftfreq
    fft_rfftfreq affine_grid_generator"""
LOOKUPS = """
    index _unsafe_index index_select gather take take_along_dim embedding masked_select
    _unsafe_masked_index"""
BAGS = "_embedding_bag _embedding_bag_forward_only embedding_bag"
SORTS = """
    sort argsort msort topk kthvalue median nanmedian mode quantile _unique _unique2 unique_dim
    unique_consecutive"""
# their first operand is the table that is looked up in
TABLES = ("self", "weight")


@rule(*aten(COPIES))
def copy(op: Op) -> Work:
    """The elements of the inputs in another place or order; what is not covered is filled with zeros

    flops    0
    read     the inputs
    write    the whole result (slice_backward: the whole zeroed gradient)
    """
    return moved(op, "copy", read(op), written(op))


@rule("aten.copy_", "aten.copy", "aten._copy_from", "aten._foreach_copy")
def copy_over(op: Op) -> Work:
    """src -> self

    flops    0        read src        write self
    """
    return moved(op, "copy", read_except(op, "self"), written(op))


@rule(*aten(CREATIONS))
def create(op: Op) -> Work:
    """A tensor filled with constants or a range

    flops    0        read nothing        write the result
    """
    return moved(op, "create", 0, written(op))


@rule(*aten(LOOKUPS))
def lookup(op: Op) -> Work:
    """Elements or rows of a table, picked by index

    flops    0
    read     the indices, and of the table what is picked, at most all of it
    write    what is picked
    """
    table = op.inputs[0] if op.operands[0] in TABLES else op.operand("self")
    picked = part(table, sum(value.numel for value in op.outputs))
    return moved(op, "gather", read_except(op, "self", "weight") + picked, written(op))


@rule(*aten(BAGS))
def embedding_bag(op: Op) -> Work:
    """Rows of weight[V,d] picked by index and summed in bags -> y[bags,d] and bookkeeping

    flops    |indices| d        read the indices, and the rows picked, at most all
    """
    weight, indices = op.operand("weight"), op.operand("indices")
    picked = indices.numel * shape(weight)[-1]
    return moved(op, "gather", read_except(op, "weight") + part(weight, picked), written(op), picked)


@rule("aten.embedding_dense_backward", "aten._embedding_bag_dense_backward", "aten._embedding_bag_backward")
def embedding_backward(op: Op) -> Work:
    """dy[..,d], indices -> dweight[V,d], zero but for the rows picked

    flops    |dy|        read dy, indices        write the whole of dweight
    """
    return moved(op, "gather", read(op), written(op), op.inputs[0].numel)


@rule(*aten("one_hot nonzero nonzero_static argwhere where.default index_select_backward"))
def pick(op: Op) -> Work:
    """Positions from values, or values from positions

    flops    0        read the input        write the result
    """
    return moved(op, "gather", read(op), written(op))


@rule(*aten("bincount histc histogram searchsorted bucketize grid_sampler_2d grid_sampler_3d"))
def bin_values(op: Op) -> Work:
    """Each element put into its bin, or interpolated from its neighbours

    flops    8 per element of the larger side (a binary search, or four weighted neighbours)
    """
    numel = max(value.numel for value in (*op.inputs[-1:], *op.outputs))
    return moved(op, "gather", read(op), written(op), 8 * numel)


@rule(*aten(SORTS))
def sort(op: Op) -> Work:
    """Rows of width w in order, or the k first of each

    flops    |x| ceil(log2 w) comparisons (topk: log2 k)        read x once        write values and indices
    ignores  the passes of a radix sort: bytes are a lower bound
    """
    x = op.inputs[0]
    dims, dim = shape(x), op.attr("dim", -1)
    width = op.attr("k") or (dims[dim] if dims and isinstance(dim, int) else x.numel)
    return moved(op, "sort", read(op), written(op), x.numel * max(1, (max(width, 1) - 1).bit_length()))
