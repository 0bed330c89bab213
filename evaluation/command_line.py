"""What a person meets before anything runs: the help text, and one clear sentence for each way to mistype a command.

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
}
SETTINGS = {
    "budget": "tokens per kv head and layer after the prompt, on average (128), or a share of the prompt (0.1)",
    "limit": "at most this many samples of each task",
    "batch_size": "prompts read together; changes speed, not results",
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
        "Any value of a group can be set too: method.window=16, suite.tasks.needle.lengths=[1000,2000], protocol.kernel=5.",
        "Lists need brackets, and quotes where the shell reads brackets; a comma without brackets sweeps (with -m).",
        "Issuing a command again goes on where it stopped. Exit codes: 0 done, 1 something failed, 2 bad input, 130 Ctrl-C.",
    ]
    return "\n".join(lines)


def check(arguments: list[str]) -> None:
    """Refuse what cannot work, before anything is imported.

    Errors: ValueError with the nearest names."""
    for argument in arguments:
        if argument.startswith("--"):
            name = argument.split("=")[0]
            if name not in HYDRA_OPTIONS:
                raise ValueError(f"{argument}: settings take no dashes, write {argument.lstrip('-')}")
            continue
        name, _, values = argument.partition("=")
        if name in GROUPS and values and "(" not in values:
            for value in values.split(","):
                _check_option(name, value.strip("'\" "))


def explain(error: Exception) -> str:
    """What Hydra or OmegaConf objected to, in one sentence."""
    text = str(error)
    for pattern in (r"full_key: (\S+)", r"Could not override '([^']+)'"):
        if not isinstance(error, ValueError) and (found := re.search(pattern, text)):
            return unknown_setting(found.group(1))
    return " ".join(text.split("\n\n")[0].split())


def unknown_setting(name: str) -> str:
    group, _, parameter = name.partition(".")
    known = (
        [f"{group}.{key}" for key in _keys(group)] if parameter and group in GROUPS else [*GROUPS, *SETTINGS]
    )
    near = get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "python run.py --cfg job shows all settings."
    return f"unknown setting {name!r}: {hint}"


def _keys(group: str) -> set[str]:
    """Parameters that any file of a group has."""
    return {
        key
        for file in (CONF / group).glob("*.yaml")
        for key in re.findall(r"^(\w+):", file.read_text(), re.MULTILINE)
    }


def _check_option(group: str, value: str) -> None:
    known = list(options(group))
    if value and value not in known:
        near = get_close_matches(value, known, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}."
        other = " Any other: model.id=..." if group == "model" else ""
        raise ValueError(f"unknown {group} {value!r}: {hint}{other}")


def _first_comment(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("# ")), "")
