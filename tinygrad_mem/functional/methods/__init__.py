"""The table of ``Tensor``'s methods: each is a public function with the tensor as its first argument.

``Tensor`` inherits this class for type checkers only; at run time the functions are put on ``Tensor`` below. So the tape
knows no op, and an editor knows every method.
"""

from __future__ import annotations

from typing import Any

from ...autograd.backward import BackwardMethod
from ...autograd.tensor import Tensor
from .. import convert, creation, index, join, linalg, random, rearrange, reduce, scan, search, shape, strided, write
from .. import diagonal as diagonals
from .. import gather as gather_functions
from .. import quantile as ranks
from .. import softmax as softmax_functions
from .. import sort as sort_functions
from .elementwise import Elementwise
from .in_place import InPlaceMethods
from .operators import Operators

_NOT_METHODS = set(vars(type("Empty", (), {}))) | {"__hash__", "__firstlineno__", "__static_attributes__"}


class Methods(Operators, Elementwise, InPlaceMethods):
    """Name -> function."""

    # --- the tape

    backward = BackwardMethod.backward

    # --- reductions

    sum = reduce.sum
    mean = reduce.mean
    prod = reduce.prod
    var = reduce.var
    std = reduce.std
    var_mean = reduce.var_mean
    std_mean = reduce.std_mean
    amax = reduce.amax
    amin = reduce.amin
    argmax = reduce.argmax
    argmin = reduce.argmin
    max = reduce.max
    min = reduce.min
    all = reduce.all
    any = reduce.any
    count_nonzero = reduce.count_nonzero
    logsumexp = reduce.logsumexp
    norm = reduce.norm
    median = sort_functions.median
    nanmedian = ranks.nanmedian
    quantile = ranks.quantile
    nanquantile = ranks.nanquantile
    mode = ranks.mode
    histc = search.histc
    nansum = reduce.nansum
    nanmean = reduce.nanmean
    sort = sort_functions.sort
    argsort = sort_functions.argsort
    msort = sort_functions.msort
    topk = sort_functions.topk
    kthvalue = sort_functions.kthvalue
    unique = search.unique
    unique_consecutive = search.unique_consecutive
    cumsum = scan.cumsum
    cumprod = scan.cumprod
    cummax = scan.cummax
    cummin = scan.cummin
    logcumsumexp = scan.logcumsumexp

    # --- linear algebra

    matmul = linalg.matmul
    mm = linalg.mm
    bmm = linalg.bmm
    mv = linalg.mv
    dot = linalg.dot
    outer = linalg.outer
    addmm = linalg.addmm
    addmv = linalg.addmv
    baddbmm = linalg.baddbmm
    tensordot = linalg.tensordot
    trace = linalg.trace
    vdot = linalg.vdot
    inner = linalg.inner
    ger = linalg.ger
    addbmm = linalg.addbmm
    addr = linalg.addr
    kron = linalg.kron

    # --- shape, joining

    view = shape.view
    reshape = shape.reshape
    view_as = shape.view_as
    reshape_as = shape.reshape_as
    flatten = shape.flatten
    ravel = shape.ravel
    unflatten = shape.unflatten
    squeeze = shape.squeeze
    unsqueeze = shape.unsqueeze
    permute = shape.permute
    transpose = shape.transpose
    t = shape.t
    movedim = shape.movedim
    expand = shape.expand
    expand_as = shape.expand_as
    broadcast_to = shape.broadcast_to
    narrow = shape.narrow
    select = shape.select
    unbind = shape.unbind
    split = shape.split
    split_with_sizes = shape.split_with_sizes
    chunk = shape.chunk
    diagonal = shape.diagonal
    unfold = shape.unfold
    atleast_1d = join.atleast_1d
    repeat = rearrange.repeat
    tile = rearrange.tile
    repeat_interleave = rearrange.repeat_interleave
    roll = rearrange.roll
    flip = rearrange.flip
    fliplr = rearrange.fliplr
    flipud = rearrange.flipud
    diff = rearrange.diff
    tensor_split = join.tensor_split
    hsplit = join.hsplit
    vsplit = join.vsplit
    dsplit = join.dsplit
    rot90 = rearrange.rot90
    bincount = join.bincount
    tril = diagonals.tril
    triu = diagonals.triu
    masked_scatter = write.masked_scatter
    select_scatter = write.select_scatter
    slice_scatter = write.slice_scatter
    put = write.put
    diag = diagonals.diag
    diag_embed = diagonals.diag_embed
    diagflat = diagonals.diagflat
    diagonal_scatter = diagonals.diagonal_scatter
    swapaxes = shape.swapaxes
    swapdims = shape.swapdims
    moveaxis = shape.moveaxis
    T = shape.transposed
    mT = shape.matrix_transposed
    H = shape.hermitian_transposed
    mH = shape.matrix_adjoint
    adjoint = shape.adjoint
    as_strided = strided.as_strided

    # --- indexing

    index_put = index.index_put
    gather = gather_functions.gather
    take_along_dim = gather_functions.take_along_dim
    scatter = gather_functions.scatter
    scatter_add = gather_functions.scatter_add
    scatter_reduce = gather_functions.scatter_reduce
    index_select = gather_functions.index_select
    index_add = gather_functions.index_add
    index_reduce = gather_functions.index_reduce
    index_copy = gather_functions.index_copy
    index_fill = gather_functions.index_fill
    take = gather_functions.take
    masked_select = index.masked_select
    nonzero = index.nonzero
    argwhere = index.argwhere

    # --- conversion

    to = convert.to
    clone = convert.clone
    contiguous = convert.contiguous
    cpu = convert.cpu
    cuda = convert.cuda
    type_as = convert.type_as
    type = convert.type
    half = convert.half
    bfloat16 = convert.bfloat16
    float = convert.float
    double = convert.double
    long = convert.long
    int = convert.int
    short = convert.short
    char = convert.char
    byte = convert.byte
    bool = convert.bool

    # --- creation like this tensor

    new_empty = creation.new_empty
    new_zeros = creation.new_zeros
    new_ones = creation.new_ones
    new_full = creation.new_full
    new_tensor = creation.new_tensor

    # --- random fills

    multinomial = random.multinomial
    bernoulli = random.bernoulli

    # --- softmax

    softmax = softmax_functions.softmax
    log_softmax = softmax_functions.log_softmax


for _family in (Operators, Elementwise, InPlaceMethods, Methods):
    for _name, _function in list(vars(_family).items()):
        if _name not in _NOT_METHODS:
            setattr(Tensor, _name, _function)
