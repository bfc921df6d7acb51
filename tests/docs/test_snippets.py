"""The code in README and documentation runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floc
from tests.docs.pages import DOCS, PAGES, ROOT, read_commands, read_snippets, render_video, use_tiny_model


@pytest.fixture(autouse=True)
def _one_thread(set_threads: Callable[[int], None]) -> None:
    set_threads(1)  # with models as small as these, threads only wait for one another


def run_page(page: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the snippets of a page in order; return their names."""
    names = {} if names is None else names
    snippets = read_snippets(page)
    assert snippets
    for snippet in snippets:
        exec(snippet, names)
    return names


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    use_tiny_model(tmp_path, monkeypatch)
    names = run_page(ROOT / "README.md", {"print": lambda *words: None})
    (kept,) = names["handle"].last
    assert len(kept) == round(kept.n / 8)
    assert len(names["video"]) == round(names["video"].n / 8)
    assert Path("talk.floc").exists()


def test_overview() -> None:
    assert len(run_page(DOCS / "index.md")["kept"]) == 720


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integrations.transformers import zoo

    model = zoo.model("qwen2_5_vl")
    inputs = zoo.prompt("qwen2_5_vl", [[zoo.Text(4), zoo.Video(8, *zoo.side("qwen2_5_vl")), zoo.Text(9)]]).inputs
    names = run_page(DOCS / "start" / "quickstart.md", {"model": model, "inputs": inputs})
    assert len(names["kept"]) == 720
    assert len(names["fewer"]) == 180
    assert len(names["fixed"]) == 500
    assert names["enough"].coverage >= 0.9
    assert len(names["handle"].last) == 1


def test_transformers_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    use_tiny_model(tmp_path, monkeypatch)
    printed: list[tuple[Any, ...]] = []
    names = run_page(DOCS / "guides" / "transformers.md", {"print": lambda *words: printed.append(words)})
    assert printed[-1][:3] == (len(names["kept"]), "of", names["kept"].n)
    assert len(names["kept"]) == round(names["kept"].n / 8)


def test_capture_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    use_tiny_model(tmp_path, monkeypatch)
    printed: list[str] = []
    run_page(DOCS / "guides" / "capture.md", {"print": printed.append})
    assert len(printed) == 2


def test_vllm_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    Path("videos").mkdir()
    use_tiny_model(tmp_path, monkeypatch)
    for snippet in read_snippets(DOCS / "guides" / "vllm.md"):
        if "openai" in snippet:  # needs a server: tests/integrations/vllm/test_serve.py asks one
            compile(snippet, "vllm.md", "exec")
        else:
            exec(snippet, {})
    assert floc.load("videos/talk.floc").ratio == pytest.approx(1 / 8, abs=1e-2)


def test_streams_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "guides" / "streams.md")
    assert len(names["now"]) == 512
    assert names["stream"].frames == 96


def test_archive_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lance", reason="a store needs pip install 'floc-video[store]'")
    from tests.archive.builders import make_piece

    monkeypatch.chdir(tmp_path)
    make_piece(12).save("talk.floc")
    names: dict[str, Any] = {}
    for snippet in read_snippets(DOCS / "guides" / "archive.md"):
        if "lance.dataset" in snippet:
            names["store"].add("talk.floc")  # an earlier snippet removed it
        if "ingest(" in snippet:
            Path("footage").mkdir()
            render_video(Path("footage/talk.mp4"))
        exec(snippet, names)
        if "ingest(" in snippet:
            assert (names["status"].done, names["status"].failed) == (1, 0)
    assert len(names["moments"]) == 2
    assert Path("again.floc").exists()


def test_compare_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="t-SNE needs pip install 'floc-video[report]'")
    import numpy as np

    from examples.synthetic import make_tokens

    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    tokens = make_tokens(16, height=4, width=6, dim=16)
    names = {"tokens": tokens, "kept": floc.compress(tokens, ratio=1 / 8), "times_s": np.arange(16.0), "t": 0}
    names["frame"] = np.zeros((72, 128, 3), np.uint8)
    names = run_page(DOCS / "guides" / "compare.md", names)
    assert names["encoded"].tokens.shape[0] == 8
    assert names["video"].warnings == []


def test_evaluation_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "guides" / "evaluation.md")
    assert names["paper"].get_accuracy("qwen2.5-vl-7b", "floc-paper", "videomme", ratio="1/8") is not None


@pytest.mark.parametrize("line", read_commands(DOCS / "guides" / "evaluation.md"))
def test_evaluation_commands_make_a_plan(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.helpers import run

    monkeypatch.chdir(tmp_path)
    arguments = [argument for argument in shlex.split(line)[1:] if argument != "--dry-run"]
    assert run(monkeypatch, *arguments, "--dry-run") == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    generated = {"reference/cli.md", "project/contributing.md", "project/changelog.md"}
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve()
        if DOCS in path.parents and str(path.relative_to(DOCS)) in generated:
            continue
        if path.parent == DOCS / "images" and (ROOT / "benchmarks" / "results" / path.name).exists():
            continue  # docs/mkdocs_hooks.py copies the plots
        assert path.exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Path) -> None:
    from typer.main import get_command

    from floc.cli.application import load_app

    root: Any = get_command(load_app())
    for line in read_commands(page):
        words = shlex.split(line)[1:]
        if words[0].startswith("-"):
            continue
        command = root.commands[words[0]]
        if hasattr(command, "commands"):
            command = command.commands[words[1]]
        known = {flag for param in command.params for flag in [*param.opts, *param.secondary_opts]}
        for word in words:
            if word.startswith("-") and not word[1:2].isdigit():
                assert word.split("=")[0] in known, line


def test_methods_page_is_current() -> None:
    page = DOCS / "reference" / "methods.md"
    remedy = "run: floc methods --markdown > docs/reference/methods.md"
    assert page.read_text() == floc.methods.format_markdown(), remedy


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_settings_table_is_right() -> None:
    """Tokens and KV cache of Qwen2.5-VL-7B follow from frames, frame size and ratio."""
    rows = re.findall(
        r"^\| (\d+) (minutes|hours?) \| (\d) \| (\d+) x (\d+) \| ([\d,]+) "
        r"\| (\S+)(?: tokens)? \| ([\d,]+) \| ([\d.]+) GiB",
        (DOCS / "start" / "settings.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for length, unit, fps, width, height, tokens, ratio, kept, cache in rows:
        seconds = int(length) * (60 if unit == "minutes" else 3600)
        expected = seconds * int(fps) // 2 * (int(width) // 28) * (int(height) // 28)
        assert int(tokens.replace(",", "")) == expected
        count = int(kept.replace(",", ""))
        assert count == (expected // int(ratio.split("/")[1]) if "/" in ratio else int(ratio.replace(",", "")))
        per_token = 2 * 28 * 4 * 128 * 2  # keys and values, layers, KV heads, head size, bytes
        assert float(cache) == pytest.approx(count * per_token / 2**30, abs=0.005)


def test_tables_are_filled_from_results(tmp_path: Path) -> None:
    from benchmarks.pages import fill

    pages = [page for page in PAGES if "<!-- bench:" in page.read_text()]
    assert pages
    for page in pages:
        copy = tmp_path / page.name
        copy.write_text(page.read_text())
        fill(copy, ROOT / "benchmarks" / "results")
        assert copy.read_text() == page.read_text(), f"run: python -m benchmarks --fill {page.relative_to(ROOT)}"
