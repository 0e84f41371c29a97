"""The commands and their options. The command NAME calls ``run`` in ``cli/NAME.py`` with its options."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import TinygradMemError
from ..starting import INTERRUPTED
from ..text import visible
from .outputs import check_outputs, words
from .refusals import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


Data = StrEnum("Data", "digits mnist cifar10")
TrainingPrecision = StrEnum("TrainingPrecision", "float32 autocast half")
Precision = StrEnum("Precision", "float32 autocast half float16 bfloat16 float64")  # precision.py says what each means
QuantType = StrEnum("QuantType", "nf4 int8")
Update = StrEnum(
    "Update",
    "sgd momentum momentum-half sgd8bit adam adam-half adam8bit adamw adamw-half adamw8bit amsgrad adamax nadam radam rmsprop "
    "adagrad adadelta adafactor lion adam-mini muon galore apollo apollo-mini adam4bit adamw4bit lomo adalomo",
)
Network = Annotated[str, typer.Argument(help="a name such as resnet50 or gpt2, or your own: module:Class, file.py:Class")]
Sample = Annotated[str | None, typer.Option("--input", help="shape of one sample, such as 3x224x224")]
Tokens = Annotated[
    str | None,
    typer.Option(help="tokens in a sample, such as 1024; for your own class VOCABULARYxLENGTH, such as 50257x1024"),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:i")]
PredictedDevice = Annotated[
    str, typer.Option(help="cpu or cuda; a prediction for cuda needs no GPU, only CuPy: its kernels' workspaces differ")
]
AsJson = Annotated[bool, typer.Option("--json", help="print everything as JSON")]
Traceback = Annotated[bool, typer.Option(help="on an error, show the Python traceback")]


def _run(command: str, options: dict[str, Any], shown: type[Exception] | tuple[type[Exception], ...] = Exception) -> None:
    """Call ``run(**options)`` in the command's module, and end with the status that it returns.

    An error is printed as a sentence, with exit status 2, unless ``--traceback`` is given.

    Args:
        shown: the classes of these errors. A user's own network may raise anything.
    """
    traceback = options.pop("traceback", False)
    try:
        check_outputs(command, **options)
        status = import_module(f".{command}", __package__).run(**options)
        sys.stdout.flush()  # at the end of the process, a closed pipe would print a traceback
    except KeyboardInterrupt:
        typer.echo(f"{command}: interrupted", err=True)
        status = INTERRUPTED
    except BrokenPipeError:
        raise  # the reader has closed the pipe, as ``| head`` does: typer ends the program
    except shown as error:
        if traceback:
            raise
        known = shown is not Exception or isinstance(error, TinygradMemError)
        said = words(error) if known or isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        typer.echo(visible(f"{command}: {said.removeprefix(f'{command}: ')}", keep="\n"), err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def tinygrad_mem(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None:
    """Where does the memory of deep-learning training go?"""


@app.command()
def tips(
    tip: Annotated[list[str] | None, typer.Option(help="run only this tip, and show its timelines; may be repeated")] = None,
    network: Annotated[
        str | None, typer.Option(help="for tips about any network: a name such as resnet20, or your own as file.py:Class")
    ] = None,
    sample: Sample = None,
    tokens: Tokens = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="samples in a step; each tip has its own default")] = None,
    device: Device = "cpu",
    html: Annotated[
        Path | None, typer.Option(help="write an HTML page to this file; report.html if all tips run; '' for no page")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="draw the memory before and after one --tip over time, stacked by category")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="show each case of each tip, not only the biggest effects")] = False,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Measure every memory-saving tip. Each runs before and after: what it does to the peak, to the time and to the result."""
    _run("tips", locals())


@app.command()
def train(
    device: Device = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="images in a step")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 12,
    seed: Annotated[int, typer.Option(help="seed of the weights, the shuffling and dropout")] = 0,
    optimizer: Annotated[Update, typer.Option(metavar="<name>", help=f"sgd has momentum. {', '.join(Update)}")] = Update.adam,
    precision: Annotated[TrainingPrecision, typer.Option(help="half: float16, with float32 copies in the optimizer")] = (
        TrainingPrecision.float32
    ),
    data: Annotated[Data, typer.Option(help="digits comes with scikit-learn; the others need --data-dir")] = Data.digits,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the original files")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="draw the memory of the first two steps over time, stacked by category")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small CNN and show where its memory goes. The images are real, and the table is of one training step."""
    _run("train", locals(), (TinygradMemError, OSError, ImportError))


PredictedPrecision = Annotated[
    Precision,
    typer.Option(
        metavar="<name>",
        help=f"{', '.join(Precision)}. half: float16, with float32 copies and gradients. For PyTorch's classes "
        "bfloat16 and float16 are autocast, for hf: the weights",
    ),
]
Optimizer = Annotated[
    Update,
    typer.Option(
        metavar="<name>",
        help=f"{', '.join(Update)}. momentum: SGD with momentum; -half: float16 moments; lomo, adalomo: in backward",
    ),
]


Ranks = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="number of processes, each with --batch-size samples; for a PyTorch function that calls "
        "init_process_group: the world size",
    ),
]


@app.command()
def estimate(
    network: Annotated[
        str,
        typer.Argument(
            help="a name such as vgg16 or llama-3-8b; the config.json of a language model; your own class, of PyTorch or of "
            "this library: module:Class, file.py:Class; for PyTorch: a function that trains, file.py:run, or hf:config.json"
        ),
    ],
    batch_size: Annotated[
        int | None, typer.Option(min=1, show_default="32", help="samples in a step; a function makes its own batches")
    ] = None,
    sample: Sample = None,
    tokens: Tokens = None,
    optimizer: Optimizer = Update.momentum,
    precision: PredictedPrecision = Precision.float32,
    master_weights: Annotated[bool, typer.Option("--master-weights", help="float32 copies of float16 parameters")] = False,
    paged: Annotated[bool, typer.Option("--paged", help="keep the optimizer's state in host memory between its steps")] = False,
    accumulate: Annotated[int, typer.Option(min=1, help="split each batch into this number of micro-batches")] = 1,
    recompute: Annotated[
        str | None,
        typer.Option(help="recompute each chain of blocks in backward, in segments: sqrt, every-block, or their number"),
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="keep the inputs of recomputed parts in host memory until their backward")
    ] = False,
    tile: Annotated[
        int | None,
        typer.Option(min=1, help="for a language model: tokens for which each MLP and the loss are computed at a time"),
    ] = None,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="hf: recompute each block in backward")] = False,
    lora: Annotated[
        int | None, typer.Option(min=1, help="freeze the weights and train LoRA matrices of this rank; hf: uses peft")
    ] = None,
    quantize: Annotated[
        QuantType | None,
        typer.Option(help="with --lora: keep the frozen weights in 4 bits (double quantization) or in 8"),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="bytes, such as '8 GiB'; exit status 1 if the step needs more")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="answer for one card, such as 'RTX 4090'; exit status 1 unless a PyTorch program fits")
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="predict a PyTorch program again with each change that could help; takes minutes")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda (needs no GPU); the default is cuda for a PyTorch program, else cpu"),
    ] = None,
    ranks: Ranks = None,
    rank: Annotated[int, typer.Option(min=0, help="with --ranks and a PyTorch function: the rank to predict")] = 0,
    zero: Annotated[
        int,
        typer.Option(
            min=0,
            max=3,
            help="with --ranks: the stage of ZeRO. 1 divides optimizer state, 2 also gradients, 3 also parameters. "
            "With 2 and 3 the modules of each outermost Sequential and ModuleList are gathered one at a time",
        ),
    ] = 0,
    tensor: Annotated[int, typer.Option(min=1, help="with --ranks: tensor-parallel ranks, for gpt3-175b, llama-3-8b, ...")] = 1,
    pipeline: Annotated[
        int, typer.Option(min=1, help="with --ranks: pipeline stages; --accumulate gives the micro-batches")
    ] = 1,
    context: Annotated[
        int, typer.Option(min=1, help="with --ranks: context-parallel ranks, which share a sequence's tokens")
    ] = 1,
    picture: Annotated[
        Path | None, typer.Option(help="with --ranks: draw the peak of each different rank to this file")
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="show every layer, not only those that keep the most")] = False,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Predict a training step's memory.

    Nothing is computed or allocated, and no GPU is needed. For a PyTorch program the answer is what PyTorch would use on a
    GPU, and the cards on which it fits. For a network of this library it is a table of layers.
    """
    _run("estimate", locals())


@app.command()
def plan(
    network: Network,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            "--capacity",
            help="bytes to stay within, such as '8 GiB'; without it, only memory against time is shown",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="samples in a step, of all ranks together")] = 32,
    sample: Sample = None,
    tokens: Tokens = None,
    optimizer: Optimizer = Update.momentum,
    device: PredictedDevice = "cpu",
    allow: Annotated[
        str,
        typer.Option(
            help="identical: the same numbers, bit for bit; close: also other rounding, as when the batch is split; "
            "approximate: also half precision and compressed activations; or a list of names such as recompute,offload"
        ),
    ] = "identical",
    largest_batch: Annotated[bool, typer.Option("--largest-batch", help="find the largest batch that fits the budget")] = False,
    ranks: Annotated[
        int,
        typer.Option(
            min=1,
            help="number of processes, each within the budget: data parallel, ZeRO 1, 2 or 3; gpt3-175b, llama-3-8b and "
            "others also over a mesh with tensor, pipeline and context parallel",
        ),
    ] = 1,
    picture: Annotated[Path | None, typer.Option(help="draw memory against time to this file")] = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Find the fastest training step within a budget of bytes. The plan says which memory-saving techniques, and where."""
    _run("plan", locals())


@app.command()
def explore(
    network: Network = "resnet20",
    sample: Sample = None,
    tokens: Tokens = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0: any free one")] = 0,
    browser: Annotated[bool, typer.Option(help="open the page in the browser")] = True,
    traceback: Traceback = False,
) -> None:
    """Change a step on a page, see its memory. The page is served on this machine; the prediction follows each change."""
    _run("explore", locals())


@app.command()
def clinic(
    case: Annotated[str | None, typer.Argument(help="one of the cases; without it, they are listed")] = None,
    answer: Annotated[bool, typer.Option("--answer", help="show the answer at once")] = False,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Guess why memory ran out. Questions that people asked, each with its timeline, cause, fix and source."""
    _run("clinic", locals())


@app.command()
def claims(
    names: Annotated[list[str] | None, typer.Argument(help="show these claims in full; without any, a table of all")] = None,
    about: Annotated[str | None, typer.Option(help="only claims whose name, source or words contain this text")] = None,
    html: Annotated[Path | None, typer.Option(help="write an HTML page to this file")] = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Check published memory figures. Each is computed again, to the byte, and reproduced, explained or refuted."""
    _run("claims", locals())


@app.command()
def snapshot(
    file: Annotated[Path, typer.Argument(help="what torch.cuda.memory._dump_snapshot wrote; no code in it is run")],
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="replay its requests with each allocator setting, and with the best combination"),
    ] = False,
    capacity: Annotated[
        str | None,
        typer.Option(help="bytes that PyTorch has on the card, such as '24 GiB'; exit status 1 if the requests do not fit"),
    ] = None,
    device: Annotated[int | None, typer.Option(min=0, help="number of the GPU, if the file has several")] = None,
    top: Annotated[int, typer.Option(min=1, help="number of rows in each list")] = 5,
    html: Annotated[Path | None, typer.Option(help="write a page with the timeline and each block to this file")] = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Explain a memory snapshot of PyTorch. Says who had the peak, what is stuck, what grows, and what ran out of memory."""
    _run("snapshot", locals())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="a Python file; what follows are its own arguments")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="processes to start; may be more than there are cores")],
    grace: Annotated[
        float, typer.Option(min=0, help="seconds that ranks have to end by themselves after one has failed")
    ] = 5.0,
) -> None:
    """Run a program on several MPI ranks. When one fails, all are ended, and the failed one is named.

    Each line that a rank prints begins with its number. The exit status is that of the rank that failed first.
    """
    _run("launch", {"script": script, "arguments": context.args, "ranks": ranks, "grace": grace})


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: libraries, speed, devices.

    Shows devices, BLAS kernels and faster ones, pools, missing libraries and how to get them; then checks each device.
    """
    _run("doctor", locals(), (OSError,))
