"""Pages that mkdocs generates from the code: the command line, contributing, changelog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/cli.md": render_cli(),
        "project/contributing.md": _adjust_links((ROOT / "CONTRIBUTING.md").read_text()),
        "project/changelog.md": _adjust_links((ROOT / "CHANGELOG.md").read_text()),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for plot in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        files.append(File.generated(config, f"images/{plot.name}", abs_src_path=str(plot)))
    return files


def _adjust_links(text: str) -> str:
    """Make links of a page in the root of the repository work from docs/project/."""
    return re.sub(r"\]\(docs/", "](../", text)


def render_cli() -> str:
    """Render the help of every command as Markdown."""
    from typer.main import get_command

    from floc.cli.application import load_app

    parts = [
        "# Command line\n\nGenerated from the code. Results go to stdout, messages to stderr; the exit code is 0, "
        "1 if a part failed (ingest, eval, store check) or floc has a defect, 2 for an error that the message "
        "explains, 130 after Ctrl-C, or 143 after SIGTERM.\n"
    ]
    root: Any = get_command(load_app())
    for name, command in root.commands.items():
        parts += _render_command(f"floc {name}", command, "##")
    return "\n".join(parts)


def _render_command(title: str, command: Any, heading: str) -> list[str]:
    parts = [f"{heading} {title}\n", _strip_markup(command.help or "") + "\n"]
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            parts += _render_command(f"{title} {name}", child, heading + "#")
        return parts
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    usage = " ".join([title, *(f"{param.name.upper()}{'...' if param.nargs != 1 else ''}" for param in arguments)])
    parts.append(f"```text\n{usage} [OPTIONS]\n```\n")
    rows = [f"| `{param.name.upper()}` | {_cell(param.help)} |" for param in arguments]
    for param in options:
        flags = ", ".join(f"`{flag}`" for flag in [*param.opts, *param.secondary_opts])
        metavar = f" {param.metavar}" if param.metavar else ""
        default = (
            "" if param.default in (None, False, ()) or callable(param.default) else f" Default: `{param.default}`."
        )
        rows.append(f"| {flags}{metavar} | {_cell(param.help)}{default} |")
    parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n")
    if command.epilog:
        examples = re.sub(r"^Examples?: ", "", command.epilog).split("\n\n")
        parts.append("```bash\n" + "\n".join(examples) + "\n```\n")
    return parts


def _cell(text: str | None) -> str:
    return _strip_markup(text or "").replace("|", "\\|").replace("\n", " ")


def _strip_markup(text: str) -> str:
    return re.sub(r"\[/?(?:dim|bold|green|red)?\]", "", text)
