"""Names of ``torch`` that are not offered, and what to use instead: by name, else by the family that a name belongs to.

A name stands in one table, under the place where PyTorch has it; ``""`` is ``torch`` itself. A sentence may say ``{name}``.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import warnings

_DTYPES = "use tensor(..., dtype=...); dtypes are float16, bfloat16, float32, float64, int8 to int64, uint8 and bool"
_ONE_PROCESS = "one process computes here"
_WRITTEN = "leave it out: operations run as they are written"
_REAL = "tensors are real: keep real and imaginary parts as two tensors"
_DENSE = "tensors are dense: use a dense one, or index_put() the entries into zeros()"
_INSIDE = "it belongs to PyTorch's inside: leave it out"
_WHOLE = "there are no quantized or packed numbers: use half()"
_SAME = "leave it out: the same seed gives the same run"
_ROTARY = (
    "tensors are real. Rotary embeddings turn pairs of numbers by an angle: a, b = x[..., 0::2], x[..., 1::2]; "
    "stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2), where cos and sin are those of the angles"
)
_LINALG = "use numpy.linalg on tensor.detach().numpy(); products, norm and trace are offered here"
_SPECIAL = "use scipy.special on tensor.detach().numpy()"
_FUNCTIONAL = "use nn.functional.{name}"
_WINDOW = "use numpy.{hann,hamming,blackman,bartlett,kaiser}'s windows, through from_numpy()"
_THREADS = "set OMP_NUM_THREADS and TINYGRAD_MEM_THREADS before Python starts"
_AMP = "use amp.autocast"
_DEVICES = "devices are cpu, cuda and meta; Tensor.to() moves between them"

_INTERNALS = (
    "AVG AggregationType AliasDb AnyType Argument ArgumentSpec AwaitType BenchmarkConfig "
    "BenchmarkExecutionStats Block BoolType BufferDict CallStack Capsule ClassType Code "
    "CompleteArgumentSpec ComplexType ConcreteModuleType ConcreteModuleTypeBuilder DeepCopyMemoTable "
    "DeserializationStorageContext DeviceObjType DictType DispatchKey DispatchKeySet EnumType ErrorReport "
    "ExcludeDispatchKeyGuard ExecutionPlan FileCheck FloatType FunctionSchema Future FutureType Gradient "
    "Graph GraphExecutorState IODescriptor InferredType IntType InterfaceType ListType LiteScriptModule "
    "LockingLogger ModuleDict Node NoneType NoopLogger NumberType OperatorInfo OptionalType ParameterDict "
    "PyObjectType PyTorchFileReader PyTorchFileWriter RRefType SUM ScriptClass ScriptClassFunction "
    "ScriptDict ScriptDictIterator ScriptDictKeyIterator ScriptList ScriptListIterator ScriptMethod "
    "ScriptModule ScriptModuleSerializer ScriptObject ScriptObjectProperty SerializationStorageContext "
    "StaticModule StreamObjType StringType SymBool SymBoolType SymFloat SymInt SymIntType Tag TensorType "
    "ThroughputBenchmark TracingState TupleType Type UnionType Use Value CompilationUnit JITException "
    "ScriptFunction DisableTorchFunction DisableTorchFunctionSubclass LoggerBase PRIVATE_OPS "
    "TYPE_CHECKING USE_GLOBAL_DEPS USE_RTLD_GLOBAL_WITH_LIBTORCH import_ir_module "
    "import_ir_module_from_buffer merge_type_from_type_comment parse_ir parse_schema parse_type_comment "
    "unify_type_list compiled_with_cxx11_abi get_file_path prepare_multiprocessing_environment "
    "profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 classproperty torch cpp "
)


def _each(names: str, sentence: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), sentence)


INSTEAD = {
    **_each("chalf complex32", _DTYPES),
    **_each("layout strided jagged memory_format legacy_contiguous_format", "arrays are dense and strided; leave it out"),
    **_each("export package classes cond while_loop", _WRITTEN),
    **_each("futures fork wait", _ONE_PROCESS),
    **_each("set_num_threads get_num_threads set_num_interop_threads get_num_interop_threads init_num_threads", _THREADS),
    **_each("use_deterministic_algorithms are_deterministic_algorithms_enabled set_deterministic_debug_mode", _SAME),
    **_each("get_deterministic_debug_mode is_deterministic_algorithms_warn_only_enabled", _SAME),
    **_each("set_flush_denormal set_warn_always is_warn_always_enabled", "leave it out: there is no such switch"),
    **_each(
        "set_anomaly_enabled is_anomaly_enabled is_anomaly_check_nan_enabled", "autograd.gradcheck() finds wrong gradients"
    ),
    "set_printoptions": "print tensor.numpy(), which numpy.set_printoptions governs",
    **_each("random default_generator thread_safe_generator", "use manual_seed, get_rng_state, set_rng_state and Generator"),
    "quasirandom": "use scipy.stats.qmc, through from_numpy()",
    "func": "call the module; autograd.grad() gives gradients of anything",
    "vmap": "write the batch as a dimension: operations broadcast",
    "testing": "use numpy.testing.assert_allclose on tensor.numpy()",
    **_each("sparse masked nested", _DENSE),
    **_each("mps mtia xpu cpu get_device_module", _DEVICES),
    **_each("fft signal stft istft", "use numpy.fft on tensor.detach().numpy(); convolutions are offered here"),
    **_each("digamma lgamma mvlgamma polygamma igamma igammac i0", _SPECIAL),
    **_each("profiler monitor overrides", "memory.track() and memory.log tell where memory goes"),
    **_each("serialization typename torch_version return_types", _INSIDE),
    **_each("has_lapack has_mkl has_openmp has_spectral is_vulkan_available", "ask cuda.is_available(); nothing else differs"),
    **_each("bartlett_window blackman_window hamming_window hann_window kaiser_window windows", _WINDOW),
    **_each("cholesky cholesky_inverse cholesky_solve det eig geqrf inverse lobpcg logdet lstsq lu lu_solve", _LINALG),
    **_each("lu_unpack matrix_exp matrix_power matrix_rank orgqr ormqr pca_lowrank pinverse qr slogdet solve svd", _LINALG),
    **_each("svd_lowrank symeig triangular_solve nuclear_norm", _LINALG),
    **_each("adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d batch_norm channel_shuffle", _FUNCTIONAL),
    **_each("binary_cross_entropy_with_logits cosine_embedding_loss dropout embedding group_norm instance_norm", _FUNCTIONAL),
    **_each("hinge_embedding_loss kl_div layer_norm margin_ranking_loss max_pool1d max_pool2d max_pool3d", _FUNCTIONAL),
    **_each("max_pool1d_with_indices", "use nn.functional.max_pool1d(..., return_indices=True)"),
    **_each("pixel_shuffle pixel_unshuffle poisson_nll_loss rms_norm triplet_margin_loss celu_ selu_", _FUNCTIONAL),
    **_each("rrelu_ threshold_ feature_dropout feature_alpha_dropout dropout_ alpha_dropout_", "use nn.functional"),
    "constant_pad_nd": "use nn.functional.pad",
    "embedding_bag": "use nn.functional.embedding_bag",
    "embedding_renorm_": "use nn.functional.embedding(..., max_norm=...)",
    **_each("convolution conv_tbc", "use nn.functional.conv1d, conv2d or conv3d"),
    "ctc_loss": "use nn.functional.cross_entropy over aligned labels",
    **_each(
        "grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator",
        "use nn.functional.grid_sample and affine_grid",
    ),
    **_each("angle complex conj conj_physical imag real resolve_conj resolve_neg is_conj is_neg", _REAL),
    **_each("isreal", _REAL),
    **_each("polar view_as_complex view_as_real", _ROTARY),
    "aminmax": "use amin and amax",
    "asarray": "use as_tensor or from_numpy",
    "frombuffer": "use from_numpy(numpy.frombuffer(...))",
    "from_file": "use from_numpy(numpy.memmap(...))",
    **_each("empty_strided empty_permuted", "use empty(...).permute(...) or as_strided"),
    "as_strided_scatter": "clone(), and copy_() into as_strided() of it",
    "binomial": "add count bernoulli draws",
    "poisson": "use numpy.random.Generator.poisson, through from_numpy()",
    "broadcast_shapes": "use numpy.broadcast_shapes",
    **_each("can_cast result_type", "use promote_types"),
    **_each("cdist pdist", "write (a[:, None] - b[None]).norm(dim=-1)"),
    "dist": "write (a - b).norm(p)",
    "copysign": "write abs(a) * where(b < 0, -1, 1)",
    **_each("corrcoef cov", "write (x - x.mean(1, True)) @ (x - x.mean(1, True)).t() / (x.size(1) - 1)"),
    "cross": "write a.roll(-1, d) * b.roll(-2, d) - a.roll(-2, d) * b.roll(-1, d)",
    "deg2rad": "write x * (pi / 180)",
    "rad2deg": "write x * (180 / pi)",
    **_each("detach detach_", "it is a method: tensor.{name}()"),
    **_each("is_inference is_nonzero is_same_size is_signed is_storage", "ask tensor.dtype, tensor.shape or bool()"),
    "get_device": "ask tensor.device",
    "is_distributed": _ONE_PROCESS,
    "fill": "write full_like(x, value)",
    "float_power": "write x.double() ** y",
    **_each("fmax fmin", "write where(isnan(a), b, maximum(a, b.nan_to_num(-inf)))"),
    **_each("frexp ldexp nextafter", "use numpy.{name} on tensor.numpy()"),
    **_each("gcd lcm", "use numpy.{name} on tensor.numpy()"),
    **_each("frobenius_norm norm_except_dim renorm", "use norm over dimensions, and div"),
    "gradient": "write the differences with narrow(), or diff()",
    "hash_tensor": "use hash(tensor.numpy().tobytes())",
    "heaviside": "write where(x == 0, values, (x > 0).to(x.dtype))",
    **_each("histogram histogramdd", "use histc"),
    "hypot": "write sqrt(a * a + b * b)",
    **_each("isneginf isposinf", "write x == -inf or x == inf"),
    "signbit": "write x < 0",
    **_each("logaddexp logaddexp2", "use logsumexp over stack((a, b))"),
    "logit": "write log(x / (1 - x))",
    "nonzero_static": "use nonzero",
    "range": "use arange, whose end is left out",
    "segment_reduce": "use scatter_reduce",
    "sinc": "write where(x == 0, 1, sin(pi * x) / (pi * x))",
    **_each("unsafe_chunk unsafe_split unsafe_split_with_sizes", "use it without unsafe_"),
    "vander": "write x[:, None] ** arange(n)",
    "slice_inverse": "use slice_scatter",
    "to_dlpack": "use utils.dlpack.to_dlpack",
    **_each("Storage StorageBase storage", "a tensor's memory is its array"),
    "Event": "use cuda.synchronize() and time.perf_counter()",
    "Stream": "all runs on one stream",
    **_each("AcceleratorError FatalError", "catch errors.TinygradMemError or OutOfMemoryError"),
    "resize_as_sparse_": _DENSE,
    "GradScaler": "use amp.GradScaler",
    **_each(_INTERNALS, _INSIDE),
    **_each("choose_qparams_optimized dequantize fused_moving_avg_obs_fake_quant int_repr qscheme", _WHOLE),
    **_each("dsmm hsmm hspmm saddmm smm spmm sspaddmm", _DENSE),
    "addmv_": "write input.copy_(addmv(input, ...))",
}
"""torch.NAME -> what to use instead."""

FAMILIES = [
    (r"[a-z_]+_copy$", "use it without _copy, and clone() the view"),
    (r"(q|quantized|quantize|fake_quantize|fbgemm)_|per_(tensor|channel)_|empty_quantized", _WHOLE),
    (r"(q?u?int([1-7]|16|32|64|8|2x4|4x2)|bits?(8|16|\dx\d)?|float[48]_\w+)$", _DTYPES),
    (r"(to_)?sparse_|to_sparse$|is_sparse_|\w+_indices$", _DENSE),
    (r"(miopen|cudnn|mkldnn|native|batch_norm)_", "use nn.functional: a device chooses its kernels itself"),
    (r"(set_|get_|is_)?autocast_", _AMP),
    (r"(rnn|lstm|gru)(_|$)", "use the layers of nn"),
    (r"sym_", "sizes are Python's ints: use Python's int, max and min"),
    (r"\w+Storage$", "a tensor's memory is its array"),
]
"""What a name begins with (or ``$``: is) -> what to use instead of all of its family."""

PLACES: dict[str, dict[str, str]] = {
    "Tensor": {
        "apply_": "write the operation on the whole tensor, or loop over tolist()",
        **_each("cfloat cdouble", _REAL),
        **_each("map_ map2_", "write the operation on the whole tensors"),
        **_each("cauchy_ geometric_ log_normal_", "draw with normal_, exponential_ or uniform_ and transform"),
        **_each("coalesce dense_dim sparse_dim indices values is_coalesced to_dense", _DENSE),
        **_each("addbmm_ addr_", "write t.copy_(t.{name}(...)) without the _, or add_ the product"),
        **_each("new", "use new_empty or new_tensor"),
        "new_empty_strided": "use new_empty and as_strided",
        **_each("as_subclass module_load", "make the tensor anew: Tensor(...) or Parameter(...)"),
        **_each("const_data_ptr", "use data_ptr"),
        "dim_order": "use stride",
        **_each("pin_memory is_pinned", "leave it out: copies between devices are waited for"),
        **_each("share_memory_ is_shared", _ONE_PROCESS),
        **_each("record_stream", "leave it out: all runs on one stream"),
        **_each("resize", "use reshape, or resize_"),
        "resize_as": "use reshape_as, or resize_as_",
        "is_set_to": "compare data_ptr, shape and stride",
        "set_": "assign tensor.data",
        **_each("storage_type untyped_storage", "use nbytes and data_ptr; a tensor's memory is its array"),
        "sum_to_size": "use sum over the dimensions that were broadcast",
        "to_padded_tensor": _DENSE,
        **_each("ipu xpu mtia", _DEVICES),
        **_each("to_mkldnn", _INSIDE),
        "name": "keep names beside tensors: Module.named_parameters()",
        "volatile": "use no_grad()",
        "reinforce": "write the loss as -log_probability * reward",
        "index": "use t[...]",
        "is_nonzero": "use bool(t)",
        **_each("is_ipu is_maia is_mtia is_vulkan", _DEVICES),
        **_each("lu", _LINALG),
        **_each("q_scale q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points", _WHOLE),
        **_each("col_indices row_indices ccol_indices crow_indices is_sparse_csr sparse_mask", _DENSE),
        **_each("sparse_resize_ sparse_resize_and_clear_ to_sparse to_sparse_coo", _DENSE),
        **_each("to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr", _DENSE),
        "narrow_copy": "use narrow, and clone() the view",
    },
    "optim": {
        "ASGD": "use SGD, and average the parameters yourself",
        "LBFGS": "use SGD or AdamW",
        "Muon": "use AdamW",
        "Rprop": "use RMSprop",
        "swap_in_optimizer_params_and_state": "load_state_dict() what you keep",
        "swa_utils": "average state_dict()s of several epochs yourself",
    },
    "optim.lr_scheduler": {},
    "nn.init": {},
    "nn.utils": {
        "convert_parameters": "use parameters_to_vector and vector_to_parameters",
        "clip_grad_norm": "use clip_grad_norm_",
        **_each(
            "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format", "arrays are contiguous; leave it out"
        ),
        "memory_format": "arrays are contiguous; leave it out",
        "skip_init": "build the layer under no_grad on device meta, and to_empty() it",
        "stateless": "load_state_dict() the other parameters first",
        **_each("init", "use nn.init"),
    },
    "utils.data": {
        **_each(
            "DFIterDataPipe IterDataPipe MapDataPipe DataChunk datapipes functional_datapipe", "use Dataset or IterableDataset"
        ),
        **_each("guaranteed_datapipes_determinism non_deterministic argument_validation", "use Dataset or IterableDataset"),
        **_each("runtime_validation runtime_validation_disabled graph graph_settings", "use Dataset or IterableDataset"),
    },
}
"""Place -> name -> what to use instead, of places other than ``torch`` itself, ``torch.nn`` and ``torch.nn.functional``."""


_said: set[str] = set()


def say_once(subject: str, message: str) -> None:
    """Warn of something that is taken and changes nothing, the first time that it is met."""
    if subject not in _said:
        _said.add(subject)
        warnings.warn(message, UserWarning, stacklevel=4)


def why_absent(name: str, place: str = "") -> str:
    """What to say of ``torch.PLACE.NAME``, or of ``torch.NAME``."""
    instead = PLACES[place].get(name) if place else None
    if instead is None and place in ("", "Tensor"):
        instead = _by_name_or_family(name)
    full = f"{place}.{name}" if place else name
    if instead is not None:
        return f"{full} is not offered: {instead.replace('{name}', name)}"
    module = f"tinygrad_mem.{place}" if place else "tinygrad_mem"
    return f"module {module!r} has no attribute {name!r}; its names are those of torch, as far as they are offered"


_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def lacking(name: str, sentence: str) -> AttributeError | ImportError:
    """What a module's ``__getattr__`` raises: ``from MODULE import NAME`` drops an AttributeError, and its sentence with it."""
    asks = sys._getframe(2)
    if asks.f_lasti >= 0 and asks.f_code.co_code[asks.f_lasti] == _IMPORT_FROM:
        return ImportError(sentence, name=name)
    return AttributeError(sentence)


class _Absent:
    """A name that ``torch.Tensor`` has and tensors here have not: to ask for it tells what to use instead."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, tensor: object, kind: type | None = None) -> None:
        raise AttributeError(why_absent(self.name, "Tensor"))


_OF_TENSORS = {*PLACES["Tensor"], *INSTEAD, *(f"{name}_" for name in INSTEAD)}


class Explained:
    """A base of ``Tensor``, by which absent names explain themselves; a ``__getattr__`` would double the time of every read."""

    vars().update({name: _Absent(name) for name in _OF_TENSORS})

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if type(inspect.getattr_static(self, name, None)) is not _Absent]


def _by_name_or_family(name: str) -> str | None:
    if name.startswith("__"):
        return None
    plain = name.removesuffix("_")
    if name in INSTEAD or plain in INSTEAD:
        return INSTEAD.get(name) or INSTEAD[plain]
    for beginning, sentence in FAMILIES:
        if re.match(beginning, name):
            return sentence
    return None
