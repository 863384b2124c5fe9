"""Words of a command line: flags of Megatron, TrainingArguments or torchtitan, and variables before them."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache

from trueup.checklist.dialect import dialects, elements
from trueup.checklist.expression import parsed
from trueup.checklist.readers import environment
from trueup.checklist.readers.mappings import HYDRA_WORD, SWIFT, hydra_words
from trueup.checklist.settings import Setting, SettingsDocument, scalar
from trueup.errors import ConfigError

_FLAG = re.compile(r"--?[A-Za-z][\w.\-]*(=.*)?$", re.DOTALL)
_PAIR = re.compile(r"[A-Za-z_][\w.]*=")
_FILES = (".yaml", ".yml", ".json", ".toml")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
NEGATED = {
    "disable_align_grad_reduce": "align_grad_reduce",
    "disable_bias_linear": "add_bias_linear",
    "disable_clone_scatter_output_in_embedding": "clone_scatter_output_in_embedding",
    "disable_fp8_wgrad": "fp8_wgrad",
    "disable_gloo_process_groups": "use_gloo_process_groups",
    "disable_mamba_mem_eff_path": "use_mamba_mem_eff_path",
    "disable_manual_gc_eval": "manual_gc_eval",
    "disable_pad_vocab_size": "pad_vocab_size",
    "disable_tp_comm_bulk_dgrad": "tp_comm_bulk_dgrad",
    "disable_tp_comm_bulk_wgrad": "tp_comm_bulk_wgrad",
    "disable_tp_comm_overlap_ag": "tp_comm_overlap_ag",
    "disable_tp_comm_overlap_rs": "tp_comm_overlap_rs",
    "disable_tp_comm_split_ag": "tp_comm_split_ag",
    "disable_tp_comm_split_rs": "tp_comm_split_rs",
    "disable_use_tokenizer_model_from_checkpoint_args": "use_tokenizer_model_from_checkpoint_args",
    "bert_no_binary_head": "bert_binary_head",
    "muon_no_split_qkv": "muon_split_qkv",
    "no_barrier_with_level_1_timing": "barrier_with_L1_time",
    "no_initialization": "perform_initialization",
    "no_one_logger": "enable_one_logger",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_position_embedding": "add_position_embedding",
    "no_rope_fusion": "apply_rope_fusion",
    "torch_fsdp2_no_reshard_after_forward": "torch_fsdp2_reshard_after_forward",
    "use_same_sampling_seed_across_dp_ranks": "offset_sampling_seed_by_dp_rank",
}
"""flags of Megatron's parser that turn an argument of another name off"""
_KEPT_NO = frozenset(
    {
        *("no_load_optim", "no_load_rng", "no_save_optim", "no_save_rng", "no_load", "no_save"),
        "no_persist_layer_norm",
    }
)
"""arguments that are called as their flags"""
_TRAINER = {
    "per_device_train_batch_size",
    "lr_scheduler_type",
    "max_grad_norm",
    "learning_rate",
    "model_name_or_path",
}
_OPENRLHF = {"actor_learning_rate", "micro_train_batch_size", "micro_rollout_batch_size", "init_kl_coef"}
_TORCHTITAN = ("training.", "parallelism.", "optimizer.", "lr_scheduler.", "job.")

_CONFIG_FLAGS = (
    *("config", "config_path", "config_file", "yaml_cfg", "job.config_file"),
    *("deepspeed", "deepspeed_config"),
)
_FEWEST_LINES = 3
_FEWEST_HYDRA = 2
_VERL = ("actor_rollout_ref", "algorithm", "critic")
_DEVICES = {"nproc_per_node", "nnodes"}
LAUNCHER = (
    *("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint"),
    *("worker_num", "local_worker_num", "log_dir", "join", "cluster_time_out", "bind_core"),
)
"""flags of torchrun and msrun that a written script keeps"""
_PROCESSES = {
    "accelerate": ("num_processes",),
    "deepspeed": ("num_gpus", "num_nodes"),
    "mpirun": ("np", "n"),
    "srun": ("ntasks", "n"),
}
"""of what starts a program: the flags whose product is the number of its processes"""
_FROM_STARTER = ("world_size", "bf16", "fp16")
_QUOTED_NUMBERS = re.compile(r"(['\"])([^A-Za-z'\"]+)\1")
"""numbers or a pattern of them between quotes that reach the program, which looks for the numbers inside"""
_OPEN = re.compile(r"\$(\{[^{}]*\}|\(.*\))$", re.DOTALL)
"""a whole word that only the running shell knows: ``$EXTRA_ARGS``, ``"$@"``, ``$(echo ...)``"""
SEVERAL = frozenset(
    {
        *("data_path", "train_data_path", "valid_data_path", "test_data_path", "train_data", "valid_data"),
        *("special_tokens", "spec", "report_to", "label_names", "recompute_modules", "cp_comm_type"),
        *("rampup_batch_size", "hierarchical_context_parallel_sizes", "mrope_section", "offload_modules"),
        *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "iterations_to_skip", "profile_ranks"),
    }
)
"""flags that take more than one word (``nargs`` in Megatron-LM's and Hugging Face's parsers)"""

Word = tuple[str, str]
"""a word and its place"""


def looks_like(text: str) -> bool:
    """Whether this is no name of a file but a command."""
    return " " in text.strip() and (" --" in f" {text}" or any(map(is_of_verl, text.split())))


def is_of_verl(word: str) -> bool:
    """Whether it is a word of Hydra that verl's trainer has: ``actor_rollout_ref.rollout.n=8``."""
    found = HYDRA_WORD.match(word)
    return found is not None and found[1].partition(".")[0] in _VERL


def flags_of_file(text: str) -> list[tuple[int, str]] | None:
    """The numbered lines of a file of flags, one or more a line; lines of free text are left out.

    None where most lines are something else.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    found = [(number, line.rstrip("\\ ")) for number, line in lines if line.startswith("--")]
    others = [line for _, line in lines if not line.startswith(("--", "#"))]
    return found if len(found) >= _FEWEST_LINES and len(others) < len(found) else None


def documents(text: str, *, path: str) -> list[SettingsDocument]:
    """A command line given as text.

    Raises:
        ConfigError: quotes that do not close, or no flag that is known.
    """
    try:
        words = shlex.split(text, comments=False)
    except ValueError as error:
        raise ConfigError(f"the command line cannot be split into words: {error}") from error
    return from_words([(word, path) for word in words], path=path, kind="shell")


def from_words(words: Sequence[Word], *, path: str, kind: str) -> list[SettingsDocument]:
    """The documents of one command: its flags, and the variables set before it.

    Raises:
        ConfigError: no flag in it.
    """
    if len([word for word, _ in words if is_of_verl(word)]) >= _FEWEST_HYDRA:
        return [hydra_words(words, path=path, kind=kind)]
    starter, script, own = _parted(words)
    before = starter if script else itertools.takewhile(lambda one: not _is_flag(one[0]), words)
    variables = [(w, place) for w, place in before if _VARIABLE.match(w)]
    started = _started(starter, script)
    settings = {**started, **flags(own)}
    behind = [*itertools.takewhile(lambda one: not _is_flag(one[0]), own)]
    named = next((at for at, (word, _) in enumerate(behind) if word.endswith(_FILES)), None)
    if named is not None:
        settings.setdefault("config", Setting("config", *behind[named]))
    if not settings:
        raise ConfigError(f"{path}: no flag such as --num-layers in this command")
    of_starter = started.keys() - flags(own).keys() - {*LAUNCHER, *_FROM_STARTER}
    data = {key: setting.value for key, setting in settings.items() if key not in of_starter}
    dialect = _dialect(settings)
    if not _known(dialect, settings) and not config_files(settings):
        shown = ", ".join(f"--{key}" for key in list(settings)[:5])
        wanted = "Megatron-LM, TrainingArguments, ms-swift, OpenRLHF or torchtitan"
        raise ConfigError(f"{path}: no flag of {wanted}, and no --config file, among {shown}")
    found = [
        SettingsDocument(
            dialect=dialect,
            path=path,
            settings=settings,
            data={"script": script, **data},
            kind=kind,
            exports=dict(w.partition("=")[::2] for w, _ in variables),
            notes=_not_read(path, own[named + 1 :] if named is not None else ()),
        )
    ]
    return [*found, *_of_variables(variables, path)]


def _of_variables(variables: Sequence[Word], path: str) -> list[SettingsDocument]:
    """What is set in front of a command as a document of its own, where some field reads any of it."""
    parts = [(word.partition("="), place) for word, place in variables]
    known = environment.known({name: Setting(name, value, place) for (name, _, value), place in parts})
    kind = "environment"
    return [SettingsDocument(dialect=kind, path=path, settings=known, kind=kind)] if known else []


def _not_read(path: str, words: Sequence[Word]) -> tuple[str, ...]:
    """What is set behind a file of settings as ``key=value``: which program takes it so is not known."""
    pairs = [word for word, _ in words if _PAIR.match(word)]
    return (f"{path}: not read, behind the file of settings: {' '.join(pairs)}",) if pairs else ()


def _started(starter: Sequence[Word], script: str) -> dict[str, Setting]:
    """Flags of what starts the program; the processes and the precision it starts with under known names."""
    found = flags(starter)
    if not script or {"nproc_per_node", "worker_num"} & found.keys():
        return found
    names = {word.rpartition("/")[2] for word, _ in starter}
    for name, keys in _PROCESSES.items():
        given = [found[key] for key in keys if key in found]
        firsts = [s.value[0] if isinstance(s.value, list) else s.value for s in given]
        numbers = [value for value in firsts if isinstance(value, int)]
        if name in names and numbers and len(numbers) == len(given):
            found["world_size"] = Setting("world_size", math.prod(numbers), given[0].place)
            break
    precision = found.get("mixed_precision")
    if "accelerate" in names and precision is not None and precision.value in ("bf16", "fp16"):
        found[str(precision.value)] = Setting(str(precision.value), True, precision.place)
    return found


def _parted(words: Sequence[Word]) -> tuple[Sequence[Word], str, Sequence[Word]]:
    """What starts the program, the program (a file, or ``-m`` with a module), and its own flags."""
    for at, (word, _) in enumerate(words):
        if word.endswith(".py"):
            return words[:at], word, words[at + 1 :]
        if word == "-m" and at + 1 < len(words) and not words[at + 1][0].startswith("torch.distributed"):
            return words[:at], f"-m {words[at + 1][0]}", words[at + 2 :]
    return (), "", words


def config_files(settings: Mapping[str, Setting]) -> list[str]:
    """Files of settings that the command names."""
    found = (settings[key].value for key in _CONFIG_FLAGS if key in settings)
    return [value for value in found if isinstance(value, str)]


def speaks(document: SettingsDocument) -> bool:
    """Whether a command says anything beyond the files it names."""
    return _known(document.dialect, document.settings)


def _known(dialect: str, settings: Mapping[str, Setting]) -> bool:
    """Whether the dialect has a word for any of the flags."""
    known = dialects()[dialect]
    texts = (*known.fields.values(), *map(str, known.defaults.values()))
    names = {
        elements(place)[0] for text in texts for name in parsed(text).names for place in known.places(name)
    }
    return bool(names & settings.keys() - _DEVICES)


def flags(words: Sequence[Word]) -> dict[str, Setting]:
    """Flags with their values, by the program's names: ``--no-rope-fusion`` sets apply_rope_fusion."""
    found: dict[str, Setting] = {}
    index = 0
    while index < len(words):
        word, place = words[index]
        index += 1
        if not word.startswith("-") or not _FLAG.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        taken: list[str] = [value] if equals else []
        while not equals and index < len(words) and not _is_flag(words[index][0]):
            if words[index][0].endswith(".py"):
                break
            if not _beside(words[index][0], name.replace("-", "_"), taken):
                taken.append(words[index][0])
            index += 1
        taken = [_QUOTED_NUMBERS.sub(r"\2", one) if one[:1] in "'\"" else one for one in taken]
        setting = _setting(name.replace("-", "_"), taken, place)
        found[setting.key] = setting
    return found


def _beside(word: str, name: str, taken: Sequence[str]) -> bool:
    """Whether an open word holds more flags, or nothing, and is no value of the flag it stands behind."""
    if not _OPEN.fullmatch(word):
        return False
    return (
        name in _switches() or name.startswith(("no_", "disable_")) or (bool(taken) and name not in SEVERAL)
    )


@lru_cache(maxsize=1)
def _switches() -> frozenset[str]:
    """Flags of Megatron-LM that take no value."""
    known = dialects()["megatron"].defaults.items()
    return frozenset(name for name, text in known if str(text) in ("True", "False"))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not isinstance(scalar(word), (int, float)) and bool(_FLAG.match(word))


def _setting(name: str, taken: Sequence[str], place: str) -> Setting:
    if not taken and name not in _KEPT_NO:
        if name in NEGATED:
            return Setting(NEGATED[name], False, place)
        if name.startswith("no_"):
            return Setting(name.removeprefix("no_"), False, place)
        return Setting(name, True, place)
    values: list[object] = [scalar(word) for word in taken]
    return Setting(name, values[0] if len(values) == 1 else values or True, place)


def _dialect(settings: dict[str, Setting]) -> str:
    if any(key.startswith(_TORCHTITAN) for key in settings):
        return "torchtitan"
    if _OPENRLHF & settings.keys():
        return "openrlhf"
    if "finetuning_type" in settings:
        return "llamafactory"
    if SWIFT & settings.keys():
        return "swift"
    return "hf_trainer" if _TRAINER & settings.keys() and "num_layers" not in settings else "megatron"
