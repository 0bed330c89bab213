"""What is said of a mistyped command before anything is imported, and that every named choice composes."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir

from evaluation import command_line

CONF = str(command_line.CONF)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["method=pyramid_kv"], "unknown method 'pyramid_kv': did you mean pyramidkv or"),
        (["-m", "method=snapkv,h20"], "unknown method 'h20': did you mean h2o?"),
        (["method="], "method= has no value"),
        (["experiment=table1"], "unknown experiment 'table1'"),
        (["logger=wanb"], "did you mean wandb?"),
        (["model=llama"], "Any other: model.id="),
        (["hydra/launcher=slurm"], "hydra/launcher=slurm concerns sweeps: add -m"),
        (["hydra.launcher.part=1/2"], "concerns sweeps"),
        (["--budget=3"], "write budget=3"),
        (["budget"], "written name=value"),
    ],
)
def test_what_cannot_work_is_refused_with_the_nearest_names(arguments, sentence):
    with pytest.raises(ValueError) as refusal:
        command_line.check(arguments)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["method=snapkv", "--cfg", "job"],
        ["-m", "method=choice(snapkv,h2o)", "hydra/launcher=slurm"],
        ["experiment=needle_small", "hydra/launcher=local_processes"],
        ["~logger", "model.id=org/name", "+model.x=1"],
    ],
)
def test_what_may_work_is_let_through(arguments):
    command_line.check(arguments)


def test_multirun_may_stand_anywhere():
    assert command_line.ordered(["a=1", "-m", "b=2"]) == ["-m", "a=1", "b=2"]


def test_a_setting_that_some_of_a_group_have_is_named_with_them():
    sentence = command_line.unknown_setting("method.window")
    assert "pyramidkv" in sentence and "snapkv" in sentence and "fullkv" not in sentence


def choices() -> list[tuple[str, str]]:
    return [(group, name) for group in command_line.GROUPS for name in command_line.options(group)]


@pytest.mark.parametrize(("group", "name"), choices())
def test_every_choice_composes_has_a_word_of_help_and_no_value_missing(group, name):
    from omegaconf import OmegaConf, open_dict

    line = command_line.options(group)[name]
    assert line and "@package" not in line, "the first comment of a file is its line in --help"
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", [f"{group}={name}"])
    with open_dict(config):
        config.pop("hydra", None)
    assert OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


@pytest.mark.parametrize("name", sorted(command_line.options("experiment")))
def test_an_experiment_names_a_grid_of_choices_that_exist(name):
    """Every value of its groups is a file, and it is no sweep of one."""
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", [f"experiment={name}"], return_hydra_config=True)
    assert config.hydra.mode.name == "MULTIRUN"
    command_line.check(
        ["-m", *(f"{group}={values}" for group, values in config.hydra.sweeper.params.items())]
    )
    assert all("," in str(values) for values in config.hydra.sweeper.params.values())


def test_the_papers_table_is_the_whole_grid():
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", ["experiment=pyramidkv_table1"], return_hydra_config=True)
    axes = {group: str(values).split(",") for group, values in config.hydra.sweeper.params.items()}
    assert [len(axes[group]) for group in ("model", "method", "budget")] == [3, 5, 4]
    assert axes["budget"] == ["64", "96", "128", "2048"] and len(config.suite.tasks) == 16
    assert config.protocol.name == "paper"
