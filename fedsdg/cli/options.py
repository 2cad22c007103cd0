"""Options that several commands share, and what they give: above all a config."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config


def add_config_options(sub: argparse.ArgumentParser) -> None:
    """Let a command take a config: files, single settings and plugins."""
    sub.add_argument(
        "--config", nargs="+", metavar="FILE", help="laid over the default config, in order"
    )
    sub.add_argument(
        "--set",
        nargs="+",
        metavar="KEY=VALUE",
        help="laid over the config, such as training.device=cuda",
    )
    add_plugin_option(sub)


def add_plugin_option(sub: argparse.ArgumentParser) -> None:
    """Let a command take plugins."""
    sub.add_argument(
        "--plugin",
        nargs="+",
        metavar="FILE",
        help="files that define further METHODS, or names of installed plugins",
    )


def add_json_option(sub: argparse.ArgumentParser) -> None:
    """Let a command answer a script."""
    sub.add_argument("--json", action="store_true", help="print JSON")


def say_json(content: Any) -> None:
    """JSON on standard output, where it stands alone; remarks go to standard error."""
    print(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))


def load(arguments: argparse.Namespace) -> Config:
    """The config that the options ask for; a ValueError says what is wrong with it."""
    from fedsdg.experiment.config_files import load_config

    return load_config(arguments.config or (), arguments.set or (), arguments.plugin or ())


def say_remarks(config: Config) -> None:
    """Say on standard error what is left out of one's own data, and how it suits the backbone."""
    from fedsdg.experiment.declared_data import left_out, remarks

    for remark in left_out(config.own):
        print(f"fedsdg: {remark}", file=sys.stderr)
    if config.trainable == "adapters":
        for remark in remarks(config.own, config.backbone, config.backbones[config.backbone]):
            print(f"fedsdg: {remark}", file=sys.stderr)


def whole_number(text: str) -> int:
    """A seed as it is typed: a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)
