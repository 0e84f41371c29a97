"""The PyTorch programs that ``estimate`` predicts: a function of the user's, or a training step of a class or a configuration.

The steps are written as PyTorch's users write them, and so keep what those keep: the batch, the output and the loss live until
the next step replaces them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, needs
from ..nesting import leaves
from .estimate_options import EstimateOptions
from .networks import OPTIMIZERS, check_parts, check_samples, shape_of, unwrapped
from .users import HUGGING_FACE, import_now, imports_of, load

_OPTIMIZERS = (
    "sgd", "momentum", "adam", "adamw", "amsgrad", "adamax", "nadam", "radam", "rmsprop", "adagrad", "adadelta", "adafactor",
)  # fmt: skip
"""Those of ours that PyTorch has by the same class name and arguments."""
_SAMPLES = (
    "it needs --input, the shape of one sample such as 3x224x224, "
    "or --tokens, how many tokens there are and the length of a sample, such as 50257x1024"
)


class TorchProgram:
    """A program, to be called in a prediction.

    Attributes:
        device: ``"cuda"``, unless ``--device`` says another.
        loss: the loss that its step computes; ``""``: the program's own.
        parameters: of the model, and how many of them are trained; 0: the program does not say.
        notes: what was decided for the user, in sentences.
    """

    def __init__(self, asked: EstimateOptions) -> None:
        needs("torch", "estimate of a PyTorch program")
        self.asked, self.device = asked, asked.device or "cuda"
        self.loss, self.parameters, self.trained = "", 0, 0
        self.notes: list[str] = []
        self.module, _, self.name = asked.network.rpartition(":")
        self.hugging = asked.network.startswith(HUGGING_FACE)
        self.steps = self.hugging or (asked.sample or asked.tokens) is not None
        _check(asked, self.hugging, self.steps)
        if self.hugging:
            self._make = _of_configuration(asked, self.notes)
        else:
            import_now(imports_of(self.module) or [])

    def __call__(self) -> None:
        if self.hugging:
            return self._train(self._make)
        found = load(self.module, self.name)
        if self.steps:
            return self._train(lambda: _model(found, self.asked.network))
        if isinstance(found, type):
            raise ArgumentError(f"{self.asked.network} is a class: {_SAMPLES}")
        made = _call(found, self.asked.network)
        if isinstance(made, import_module("torch").nn.Module):
            raise ArgumentError(f"{self.asked.network} makes a model and trains nothing: {_SAMPLES}")

    def _train(self, make: Callable[[], Any]) -> None:
        """Two steps of training."""
        import torch

        asked = self.asked
        model = make().to(self.device)
        model.train()
        self.parameters = sum(p.numel() for p in model.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        self.trained = sum(p.numel() for p in trained)
        if not trained:
            raise ArgumentError(f"{asked.network} has no parameters that are trained")
        rule, options = unwrapped(OPTIMIZERS[asked.optimizer])
        optimizer = getattr(torch.optim, rule.__name__)(trained, **options)
        casts = {"autocast": torch.float16} | ({} if self.hugging else {"bfloat16": torch.bfloat16, "float16": torch.float16})
        dtype = casts.get(asked.precision)
        scaler = torch.amp.GradScaler(self.device, enabled=dtype is torch.float16)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(asked.accumulate):
                batch = self._batch()
                with torch.autocast(self.device, dtype, enabled=dtype is not None):
                    output = model(input_ids=batch, labels=batch) if self.hugging else model(batch)
                    loss = self._loss_of(output) / asked.accumulate
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def _batch(self) -> Any:
        import torch

        asked, size = self.asked, self.asked.batch // self.asked.accumulate
        if self.hugging:
            return torch.randint(0, 2, (size, *shape_of("--tokens", asked.tokens or "")), device=self.device)
        if asked.tokens is None:
            return torch.randn(size, *shape_of("--input", asked.sample or ""), device=self.device)
        vocabulary, length = shape_of("--tokens", asked.tokens)
        return torch.randint(0, vocabulary, (size, length), device=self.device)

    def _loss_of(self, output: Any) -> Any:
        if self.hugging:
            self.loss = "the model's own"
            return output.loss
        tensors = [each for each in leaves(output) if isinstance(each, import_module("torch").Tensor)]
        found = [each for each in tensors if each.is_floating_point() and each.requires_grad]
        if not found:
            raise ArgumentError(f"{self.asked.network} returns no floats that depend on its parameters: there is no loss")
        scores = found[0]
        if scores.ndim < 2:
            self.loss = "the mean of the output"
            return scores.mean()
        self.loss = "cross-entropy"
        return _cross_entropy(scores.flatten(0, -2) if self.asked.tokens else scores)


def _cross_entropy(scores: Any) -> Any:
    """Against random classes, for scores of shape (batch, classes, ...)."""
    import torch

    targets = torch.randint(0, scores.shape[1], (scores.shape[0], *scores.shape[2:]), device=scores.device)
    return torch.nn.functional.cross_entropy(scores, targets)


def _check(asked: EstimateOptions, hugging: bool, steps: bool) -> None:
    """Refuse options that this program does not take."""
    check_samples(asked.sample, asked.tokens)
    if hugging and (asked.tokens is None or len(shape_of("--tokens", asked.tokens)) != 1):
        raise ArgumentError(f"{asked.network} needs --tokens, the length of a sample such as 4096: its vocabulary is known")
    if not hugging and asked.tokens is not None and len(shape_of("--tokens", asked.tokens)) != 2:
        raise ArgumentError(f"--tokens {asked.tokens!r}: write how many there are and the length of a sample: 50257x1024")
    if asked.place is not None and asked.place[0] >= asked.place[1]:
        raise ArgumentError(f"--rank {asked.place[0]}: with --ranks {asked.place[1]} the ranks are 0 to {asked.place[1] - 1}")
    if asked.place is not None and steps:
        raise ArgumentError(
            "--ranks is for a function that calls init_process_group and trains: write one, and name it instead"
        )
    if asked.sample is not None:
        shape_of("--input", asked.sample)
    if not steps and asked.step_settings:
        raise ArgumentError(
            f"{asked.network} runs as it is written: {', '.join(asked.step_settings)} cannot change it. "
            "Give --input or --tokens for a class, whose training step is made here; or write it in the function"
        )
    if not hugging and (asked.lora is not None or asked.checkpoint):
        raise ArgumentError("--lora and --checkpoint are for hf:config.json; write them in a function, and name it instead")
    if asked.optimizer not in _OPTIMIZERS:
        raise ArgumentError(
            f"--optimizer {asked.optimizer} is not for programs of PyTorch: there are {', '.join(_OPTIMIZERS)}. "
            "For another, write a function that trains, and name it instead"
        )
    if asked.precision in ("half", "float64"):
        raise ArgumentError(f"--precision {asked.precision}: for PyTorch there are float32, bfloat16, float16 and autocast")
    check_parts(asked.batch, asked.accumulate)


def _call(function: Callable[[], Any], network: str) -> Any:
    try:
        return function()
    except SystemExit as error:
        raise ArgumentError(f"{network} ended the program (sys.exit): name a function that trains and returns") from error


def _model(make: Callable[[], Any], network: str) -> Any:
    import torch

    model = _call(make, network)
    if isinstance(model, torch.nn.Module):
        return model
    what = f"a {type(model).__name__}"
    use = f"a function that trains is named without --input and --tokens: estimate {network}"
    raise ArgumentError(f"{network} makes {what}: with --input or --tokens it must make a torch.nn.Module; {use}")


# --- configurations of Hugging Face's ---------------------------------------------------------------------------------------


def _of_configuration(asked: EstimateOptions, notes: list[str]) -> Callable[[], Any]:
    """A function that makes the language model of a ``config.json``; what it needs is imported now."""
    needs("transformers", HUGGING_FACE + "config.json")
    if asked.lora is not None:
        needs("peft", "--lora")
    import torch

    transformers: Any = import_module("transformers")
    path = Path(asked.network.removeprefix(HUGGING_FACE))
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}: name the config.json of a model, as its page on the hub shows it")
    try:
        said = json.loads(path.read_text())
        config: Any = transformers.AutoConfig.for_model(said.pop("model_type"), **said)
    except (ValueError, KeyError, AttributeError) as error:
        raise ArgumentError(f"{path} is no configuration that transformers knows: {type(error).__name__}: {error}") from None
    config.use_cache = False
    notes.append("use_cache=False, as in training: the model returns no keys and values")
    dtype = getattr(torch, asked.precision if asked.precision != "autocast" else "float32")
    auto: Any = transformers.AutoModelForCausalLM
    with suppress(Exception):
        auto._model_mapping[type(config)]  # imports the model's file, not within the prediction
    return lambda: _language_model(auto, config, dtype, asked, notes)


def _language_model(auto: Any, config: Any, dtype: Any, asked: EstimateOptions, notes: list[str]) -> Any:
    model = auto.from_config(config, dtype=dtype)
    if asked.checkpoint:
        newer = getattr(model, "activation_checkpointing_enable", None)  # transformers 5 renames it
        if newer is not None:
            newer(activation_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if asked.lora is None:
        return model
    if asked.checkpoint:
        model.enable_input_require_grads()  # as users do: a frozen embedding gives what a checkpoint would take for constant
    peft: Any = import_module("peft")
    model = peft.get_peft_model(model, peft.LoraConfig(r=asked.lora, task_type="CAUSAL_LM"))
    targets = ", ".join(sorted(model.peft_config["default"].target_modules))
    note = f"LoRA of rank {asked.lora} on {targets}: peft's choice for this model"
    if note not in notes:
        notes.append(note)
    return model
