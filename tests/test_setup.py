"""All that installs the project says the same: pyproject, constraints, conda file, Makefile and CI."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec

from pyramid.models import OLDEST_TRANSFORMERS, TOO_NEW_TRANSFORMERS

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def pinned() -> dict[str, str]:
    """The constraints, by canonical name. Every line is an exact version."""
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements(names: list[str]) -> list[Requirement]:
    own = [Requirement(text) for name in names for text in EXTRAS[name]]
    everything = [*map(Requirement, PROJECT["dependencies"]), *own]
    return [requirement for requirement in everything if requirement.name != PROJECT["name"]]


def test_every_constrained_extra_is_pinned_within_what_it_asks_for() -> None:
    versions = pinned()
    for requirement in requirements(["dev", "longbench", "wandb", "slurm", "notebooks", "lm-eval"]):
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"


def test_torch_is_pinned_without_a_build_label() -> None:
    """A label such as +cpu would tie the file to the machines that offer that very build."""
    assert pinned()["torch"] == "2.13.0"
    assert all(Version(version).local is None for version in pinned().values())


def test_tests_have_what_longbench_needs() -> None:
    assert f"{PROJECT['name']}[longbench]" in EXTRAS["dev"]


def test_flash_attention_is_asked_for_nowhere_else() -> None:
    asking = [name for name, lines in EXTRAS.items() if any("flash" in line for line in lines)]
    assert asking == ["flash"]
    assert not any("flash" in line for line in PROJECT["dependencies"])


def test_the_supported_transformers_are_the_same_everywhere() -> None:
    (wanted,) = [item for item in requirements([]) if item.name == "transformers"]
    oldest = re.search(r"^OLDEST_TRANSFORMERS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert oldest and Version(oldest[1]).release[:2] == OLDEST_TRANSFORMERS
    assert wanted.specifier.contains(oldest[1]) and wanted.specifier.contains(pinned()["transformers"])
    assert not wanted.specifier.contains(f"{OLDEST_TRANSFORMERS[0]}.{OLDEST_TRANSFORMERS[1] - 1}")
    assert not wanted.specifier.contains(f"{TOO_NEW_TRANSFORMERS[0]}.0")


def test_the_conda_file_has_valid_specs_and_installs_what_make_installs() -> None:
    described = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [item for item in described["dependencies"] if isinstance(item, str)]
    specs = {str(spec.name.normalized): spec for spec in map(MatchSpec, conda) if spec.name}
    assert set(specs) == {"python", "pip"}
    version = str(specs["python"].version).removeprefix("==").removesuffix(".*")
    assert version in Requirement(f"python{PROJECT['requires-python']}").specifier
    (pip,) = [item["pip"] for item in described["dependencies"] if isinstance(item, dict)]
    assert pip == ["-c constraints.txt", "-e .[dev]"]
    makefile = (ROOT / "Makefile").read_text()
    assert "-e '.[$(2)]' -c $(3)" in makefile
    assert "$(call install,.venv,dev,constraints.txt)" in makefile


def test_make_alone_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (\S+)$", text, re.MULTILINE))
    assert targets >= {"help", "setup", "demo", "test", "check", "smoke", "test-compat", "clean"}
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    assert targets == set(re.findall(r"^ +make (\S+) +\S", shown, re.MULTILINE))


def test_ci_runs_the_checks_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines and "make check" in lines and "make test" in lines


def test_the_licence_is_the_one_that_is_named() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text().splitlines()[1]
