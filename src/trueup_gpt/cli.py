"""``trueup train``, and ``python -m trueup_gpt``, which torchrun and msrun start."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import warnings
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.errors import ConfigError, TrueupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

    from trueup_gpt.config import Config
    from trueup_gpt.logs import RunLog
    from trueup_gpt.result import StepResult

_PLACE = {"pytorch": "trueup_gpt.torch", "mindspore": "trueup_gpt.mindspore"}
_CHANGE = "Change the configuration"
_HOW = "How it runs"


class Framework(str, Enum):
    """What trains."""

    PYTORCH = "pytorch"
    MINDSPORE = "mindspore"


def command(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")
    ] = None,
    framework: Annotated[
        Framework,
        typer.Option(help="What trains; the file is the same.", rich_help_panel=_HOW),
    ] = Framework.PYTORCH,
    nproc: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes on this machine.", rich_help_panel=_HOW)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda|npu", help="Default: the one that is there.", rich_help_panel=_HOW),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Parameters and memory of each rank; nothing runs.", rich_help_panel=_HOW
        ),
    ] = False,
    synchronous: Annotated[
        bool,
        typer.Option(
            "--synchronous", help="Errors are raised where they happen: slow.", rich_help_panel=_HOW
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the last checkpoint of output_dir.", rich_help_panel=_CHANGE
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Such as training_config.seed=1; may be given again.",
            rich_help_panel=_CHANGE,
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the last checkpoint, of any layout, as Hugging Face safetensors; nothing runs.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train a GPT as a configuration says, on one process or many.

    Several machines: torchrun with its own options, and -m trueup_gpt CONFIG; or msrun with its own, and
    python -m trueup_gpt CONFIG --framework mindspore.
    """
    from trueup_gpt.config import check_combinations
    from trueup_gpt.places import check_places
    from trueup_gpt.torch.limits import check_supported

    if dry_run and export is not None:
        raise ConfigError(
            "--dry-run and --export exclude each other: neither trains; run one after the other"
        )
    if not quiet:
        others = {"--resume": resume, "--synchronous": synchronous, "--device": device is not None}
        _warn_of_ignored("--dry-run" if dry_run else "--export" if export is not None else "", others)
    read = _read(config, changes or [], resume=resume, quiet=quiet)
    if dry_run:
        _show_needs(read, nproc)
        return
    check_places(read, export)
    if export is not None:
        _installed(Framework.PYTORCH)
        _export(read, export)
        return
    _installed(framework)
    if framework is Framework.MINDSPORE:
        raise typer.Exit(_with_mindspore(read, device, nproc, synchronous=synchronous, quiet=quiet))
    world_size = int(os.environ.get("WORLD_SIZE", nproc or 1))
    check_combinations(read, world_size)
    check_supported(read)
    if world_size > 1 and "RANK" not in os.environ:
        _launch(world_size)
    _synchronous(synchronous)
    raise typer.Exit(_run(read, framework, device, quiet=quiet))


def _warn_of_ignored(what: str, given: dict[str, bool]) -> None:
    """A warning for each option that is of no use beside one that trains nothing."""
    for name in (name for name, is_given in given.items() if what and is_given):
        print(f"warning: {name} has no effect with {what}: nothing is trained", file=sys.stderr)


def _installed(framework: Framework) -> None:
    package = "torch" if framework is Framework.PYTORCH else "mindspore"
    if find_spec(package) is None:
        other = Framework.MINDSPORE if framework is Framework.PYTORCH else Framework.PYTORCH
        raise ConfigError(
            f"--framework {framework.value}: {package} is not installed here; "
            f"pip install 'trueup[{package}]', or --framework {other.value}"
        )


def _with_mindspore(
    config: Config, device: str | None, nproc: int | None, *, synchronous: bool, quiet: bool
) -> int:
    from trueup_gpt.config import check_combinations
    from trueup_gpt.launching import finished, launch, place_in_world, schedule
    from trueup_gpt.mindspore.limits import check_supported
    from trueup_gpt.session import device_of

    os.environ.setdefault("GLOG_v", "3")  # MindSpore's own warnings are many
    _, world_size = place_in_world(os.environ)
    world_size = max(world_size, nproc or 1)
    check_combinations(config, world_size)
    check_supported(config, device)
    if synchronous:
        os.environ["ASCEND_LAUNCH_BLOCKING"] = "1"
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return schedule(device_of(config, device))
    if world_size > 1 and "MS_ROLE" not in os.environ:
        return launch(world_size, ["-m", "trueup_gpt", *_words()], config.training.output_dir, quiet=quiet)
    status = _run(config, Framework.MINDSPORE, device, quiet=quiet)
    if status == 0:
        finished(*place_in_world(os.environ))
    return status


def _read(config: Path | None, changes: list[str], *, resume: bool, quiet: bool) -> Config:
    import yaml

    from trueup_gpt.config import load_config, shipped_configs

    if config is None:
        raise ConfigError(f"CONFIG is missing: a YAML file, or one of {', '.join(shipped_configs())}")
    overrides: dict[str, object] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise ConfigError(f"--set {change!r}: expected SECTION.KEY=VALUE, such as training_config.seed=1")
        try:
            read_value = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"--set {change!r}: {value!r} is no value of YAML: {' '.join(str(error).split())}"
            ) from error
        if overrides.get(key.strip(), read_value) != read_value and not quiet:
            print(
                f"warning: --set {key.strip()} is given more than once; the last counts: {value}",
                file=sys.stderr,
            )
        overrides[key.strip()] = read_value
    if resume:
        overrides["training_config.resume_training"] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = load_config(config, overrides)
    if not quiet and os.environ.get("RANK", os.environ.get("RANK_ID", "0")) == "0":
        for one in caught:
            print(f"warning: {one.message}", file=sys.stderr)
    return read


def _launch(nproc: int) -> None:
    """Become torch's launcher, which starts this command again in each process and ends all if one dies."""
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={nproc}",
        "-m",
        "trueup_gpt",
    ]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *launcher, *_words()])


def _words() -> list[str]:
    """What this command was given, without the number of processes."""
    words = sys.argv[1:]
    words = words[1:] if words and words[0] == "train" else words
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == "--nproc":
            skip = True
        elif not word.startswith("--nproc="):
            kept.append(word)
    return kept


def _synchronous(wanted: bool) -> None:
    if wanted:
        os.environ |= {
            "CUDA_LAUNCH_BLOCKING": "1",
            "ASCEND_LAUNCH_BLOCKING": "1",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        }


def _export(config: Config, folder: Path) -> None:
    from trueup.cli.printing import note_line
    from trueup_gpt.torch.exporting import export_hugging_face

    source = export_hugging_face(config, folder)
    note_line(f"wrote {source} as {folder}")


def _show_needs(config: Config, nproc: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from trueup_gpt.dry_run import needs

    found = needs(config, nproc)
    table = Table(box=None, pad_edge=False)
    for name in (
        "pp rank",
        "layers",
        "parameters",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "together",
    ):
        table.add_column(name, justify="right")
    for rank in found.ranks:
        sizes = (rank.weights, rank.gradients, rank.optimizer, rank.activations, rank.total)
        table.add_row(
            str(rank.pp_rank),
            str(rank.layers),
            f"{rank.parameters:,}",
            *(f"{size / 2**30:.2f} GiB" for size in sizes),
        )
    active = (
        "" if found.active_parameters == found.parameters else f", {found.active_parameters:,} act on a token"
    )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(f"{found.parameters:,} parameters{active}")
    plural = "" if found.world_size == 1 else "es"
    console.print(f"{found.world_size} process{plural}: {found.mesh}\n")
    console.print(table)
    console.print("\nmemory of each process; activations are an estimate, the framework's own comes on top")


def _run(config: Config, framework: Framework, device: str | None, *, quiet: bool) -> int:
    from trueup_gpt.launching import place_in_world
    from trueup_gpt.logs import RunLog

    training = config.training
    rank, _ = place_in_world(os.environ)
    log = RunLog(training.output_dir, rank, speaks=not quiet, tensorboard=training.tensorboard)
    try:
        from trueup_gpt.train import train

        prepare = importlib.import_module(f"{_PLACE[framework.value]}.session").prepare

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            session = prepare(config, device=device)
        for one in caught:
            log.warning(str(one.message))
        with _progress(log, session.num_steps, shown=not quiet and rank == 0) as on_step:
            outcome = train(session, log, on_step=on_step)
        return 128 + outcome.signal if outcome.signal else 0
    except BaseException as error:
        log.error(f"{type(error).__name__}: {error}")
        raise
    finally:
        log.close()


class _progress:
    """A line at the foot of a terminal: loss, tokens a second, time left. Elsewhere nothing."""

    def __init__(self, log: RunLog, num_steps: int, *, shown: bool) -> None:
        self._log, self._num_steps = log, num_steps
        self._bar: Progress | None = None
        self._shown = shown and sys.stdout.isatty()

    def __enter__(self) -> Callable[[StepResult], None] | None:
        if not self._shown:
            return None
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, transient=True)
        self._bar.start()
        self._log.printer = self._bar.console.print
        self._task = self._bar.add_task("", total=self._num_steps)
        return self._step

    def _step(self, result: StepResult) -> None:
        description = f"loss {result.loss:.4f}  {self._log.tokens_per_second:,.0f} tokens/s{self._log.memory}"
        assert self._bar is not None
        self._bar.update(self._task, completed=result.step + 1, description=description)

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._log.printer = print


def main() -> None:
    """As ``trueup train``. A process that fails says so and ends at once, so that none waits for it."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    status = 0
    try:
        found = app(prog_name="trueup train", standalone_mode=False)
        status = found if isinstance(found, int) else 0
    except TrueupError as error:
        _complain(str(error))
        status = 2
    except Exception as error:
        if hasattr(error, "format_message"):
            _complain(" ".join(error.format_message().split()))
            status = 2
        else:
            import traceback

            traceback.print_exc()
            _complain(f"{type(error).__name__}: {error}")
            status = 1
    if "RANK" not in os.environ and "MS_ROLE" not in os.environ:
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo's threads may abort a process that ends by itself


def _complain(message: str) -> None:
    from trueup_gpt.launching import report_to_launcher

    rank = os.environ.get("RANK", os.environ.get("RANK_ID"))
    where = "" if rank is None else f"rank {rank}: "
    print(f"error: {where}{message}", file=sys.stderr)
    report_to_launcher(int(rank or 0), f"error: {where}{message}")
