"""Run a method at a budget on a suite: `python run.py method=pyramidkv budget=128`; `--help` for more."""

from __future__ import annotations

import os
import sys

from evaluation import command_line

INTERRUPTED = "interrupted: what is answered is kept; the same command goes on from there"


def compose_and_run() -> None:
    """Hand over to Hydra: a single job comes back to `job`, a sweep goes to the launcher."""
    import hydra
    from omegaconf import DictConfig

    from evaluation import launcher

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `main`, which words them

    @hydra.main(version_base="1.3", config_path="conf", config_name="config")
    def job(config: DictConfig) -> None:
        raise SystemExit(launcher.execute([config]))

    job()


def main() -> int:
    arguments = sys.argv[1:]
    if any(argument in ("--help", "-h") for argument in arguments):
        print(command_line.help_text())
        return 0
    try:
        command_line.check(arguments)
        sys.argv[1:] = command_line.ordered(arguments)
        from evaluation.interruption import interruptible

        with interruptible():
            compose_and_run()
    except KeyboardInterrupt:
        print(f"\n{INTERRUPTED}", file=sys.stderr)
        return 130
    except Exception as error:  # what is none of these is a fault of ours and keeps its traceback
        foreign = type(error).__module__.startswith(("hydra", "omegaconf", "antlr4"))
        if not foreign and not isinstance(error, ValueError | OSError):
            raise
        print(f"error: {command_line.explain(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
