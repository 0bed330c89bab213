"""What a person meets before anything runs: the help text, and one clear sentence for each mistyped command.

Knows the configuration folder and nothing else, so that it answers at once.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPS = {
    "method": "how the cache is compressed",
    "suite": "what is asked",
    "model": "who answers; any other: model.id=org/name or model.id=/folder",
    "protocol": "the rules that all methods of a table share",
    "experiment": "a whole sweep by name, with -m",
    "logger": "where runs are copied to; they stay in results_dir in any case",
    "hydra/launcher": "what computes a sweep",
}
SETTINGS = {
    "budget": "tokens per kv head and layer after the prompt, on average (128), or a share of it (0.1)",
    "limit": "at most this many samples of each task",
    "tasks": "with suite=lm_eval: names of its tasks, '[gsm8k_cot,arc_easy]'",
    "batch_size": "prompts read together; changes speed, not results",
    "max_batch_tokens": "tokens that prompts read together have at most, where memory is short",
    "seed": "of the choice of samples and of random eviction",
    "results_dir": "where results go (results)",
    "data.path": "a data set on this machine: folder, archive or file",
}
EXAMPLES = (
    ("python run.py method=snapkv budget=64", "one method at one budget"),
    ("python run.py -m method=fullkv,snapkv,pyramidkv budget=64,128", "a sweep; each prompt is read once"),
    ("python run.py method=h2o budget=0.1 limit=5", "a tenth of each prompt, five samples"),
    (
        "python run.py method=snapkv protocol.question=after_compression",
        "the question comes after compression",
    ),
    ("python run.py method=snapkv --cfg job", "show the whole configuration, run nothing"),
)
MULTIRUN = ("-m", "--multirun")
HYDRA_OPTIONS = ("--cfg", "--resolve", "--package", "--info", "--multirun", "--hydra-help", "--version")
HYDRA_OPTIONS += (
    "--shell-completion",
    "--config-path",
    "--config-name",
    "--config-dir",
    "--experimental-rerun",
)


def options(group: str) -> dict[str, str]:
    """The names one can give for a group, each with the first comment of its file."""
    files = sorted((CONF / group).glob("*.yaml"))
    return {file.stem: _first_comment(file) for file in files}


def help_text() -> str:
    """What `python run.py --help` prints."""
    lines = [
        "Run a method of KV-cache compression at a budget on a suite; say what it scored, held and cost.",
        "",
    ]
    width = max(len(command) for command, _ in EXAMPLES) + 2
    lines += [f"  {command:<{width}}{meaning}" for command, meaning in EXAMPLES]
    for group, meaning in GROUPS.items():
        lines += ["", f"{group}=...  {meaning}"]
        known = options(group)
        lines += [
            f"  {name:<{max(map(len, known)) + 2}}{comment}".rstrip() for name, comment in known.items()
        ]
    lines += ["", "Settings"]
    lines += [f"  {name:<14}{meaning}" for name, meaning in SETTINGS.items()]
    lines += [
        "",
        "Any value of a group can be set too: method.window=16, suite.tasks.needle.lengths=[1000,2000].",
        "Lists need brackets, and quotes where the shell reads brackets; a comma without them sweeps (-m).",
        "Issuing a command again goes on where it stopped.",
        "Exit codes: 0 done, 1 something failed, 2 bad input, 130 interrupted.",
    ]
    return "\n".join(lines)


def check(arguments: list[str]) -> None:
    """Refuse what cannot work, before anything is imported.

    Errors: ValueError with the nearest names."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if argument.startswith("--"):
            name = argument.split("=")[0]
            if name not in HYDRA_OPTIONS:
                raise ValueError(f"{argument}: settings take no dashes, write {argument.lstrip('-')}")
            continue
        if "=" not in argument and argument[:1] not in ("-", "~") and not before.startswith("-"):
            raise ValueError(f"{argument!r} is no setting: settings are written name=value")
        name, _, values = argument.partition("=")
        if name in GROUPS and "(" not in values:
            for value in values.split(","):
                _check_option(name, value.strip("'\" "))
    if not sweeps(arguments):
        _check_single(arguments)


def sweeps(arguments: list[str]) -> bool:
    """Whether the command asks for a sweep."""
    named = any(argument.startswith("experiment=") for argument in arguments)
    return named or any(argument in MULTIRUN for argument in arguments)


def ordered(arguments: list[str]) -> list[str]:
    """The arguments as Hydra can read them: it wants -m outside of the settings."""
    return sorted(arguments, key=lambda argument: argument not in MULTIRUN)


def explain(error: Exception) -> str:
    """What Hydra, OmegaConf or the operating system objected to, in one sentence."""
    text, kind = str(error), type(error).__name__
    key = found.group(1) if (found := re.search(r"full_key: (\S+)", text)) else ""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; results go elsewhere with results_dir=FOLDER"
    if kind == "MissingMandatoryValue":
        return f"{key} has no value yet (???): give it one, {key}=..."
    if kind.startswith("Interpolation"):
        return f"{key}: {text.splitlines()[0]}"
    if kind == "OverrideParseException":
        return _unreadable(getattr(error, "override", text))
    if found := re.search(r"Ambiguous value for argument '(.*)'\n", text):
        name, _, value = found.group(1).partition("=")
        return (
            f"{name}={value} has several values: add -m to sweep over them, or write a list, {name}=[{value}]"
        )
    if not isinstance(error, ValueError):
        if found := re.search(r"Could not override '([^']+)'", text):
            return unknown_setting(found.group(1))
        if key and kind in ("ConfigAttributeError", "ConfigKeyError"):
            return unknown_setting(key)
    return " ".join(text.split("\n\n")[0].split())


def unknown_setting(name: str) -> str:
    if name.split(".")[0] == "judge":
        return f"{name} is a setting of the step that grades answers: python -m scripts.judge {name}=..."
    group, _, parameter = name.partition(".")
    having = [file.stem for file in sorted((CONF / group).glob("*.yaml")) if parameter in _keys(file)]
    if having:
        return f"{name} is no setting of every {group} that this command names: of {', '.join(having)} it is"
    known = (
        [f"{group}.{key}" for file in (CONF / group).glob("*.yaml") for key in _keys(file)]
        if parameter and group in GROUPS
        else [*GROUPS, *SETTINGS]
    )
    near = get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "python run.py --cfg job shows all settings."
    return f"unknown setting {name!r}: {hint}"


def _keys(file: Path) -> list[str]:
    """The parameters that a file of a group sets."""
    return re.findall(r"^(\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)


def _unreadable(argument: str) -> str:
    name, _, value = argument.partition("=")
    return (
        f"{argument} cannot be read: a value that itself has = , [ ] {{ }} ( ) or : needs quotes, and quotes "
        f"for the shell around them: '{name}=\"{value}\"'"
    )


def _check_single(arguments: list[str]) -> None:
    """Refuse what means something in a sweep only."""
    for argument in arguments:
        name, _, values = argument.partition("=")
        if name.startswith("hydra.launcher.") or (name == "hydra/launcher" and values != "company"):
            raise ValueError(f"{argument} concerns sweeps: add -m")


def _check_option(group: str, value: str) -> None:
    known = list(options(group))
    if not value:
        raise ValueError(f"{group}= has no value: take one or more of {', '.join(known)}")
    if value not in known:
        near = get_close_matches(value, known, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}."
        other = " Any other: model.id=..." if group == "model" else ""
        raise ValueError(f"unknown {group} {value!r}: {hint}{other}")


def _first_comment(file: Path) -> str:
    """The first comment for people; Hydra has its own."""
    with file.open(encoding="utf-8") as lines:
        comments = (line.lstrip("# ").rstrip() for line in lines if line.startswith("# "))
        return next((comment for comment in comments if not comment.startswith("@package")), "")
