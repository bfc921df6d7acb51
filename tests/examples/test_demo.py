"""The demo: what it prints, and the files it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

for package in ("transformers", "torchvision", "av", "PIL", "sklearn"):
    pytest.importorskip(package, reason="the demo needs pip install 'floc-video[hf,video,report]'")

from examples.demo.__main__ import main  # noqa: E402
from examples.demo.demo import METHODS, RATIOS, choose_question, make_subject, plan_film  # noqa: E402
from examples.tiny_video_model.films import PLACES, label_tokens  # noqa: E402
from examples.tiny_video_model.questions import Question, QuestionPicker  # noqa: E402
from examples.tiny_video_model.things import THINGS  # noqa: E402


@pytest.mark.slow  # `make demo` in .ci/run does the same work
def test_prints_answers_and_scores_and_writes_film_and_report(tmp_path: Path, capsys) -> None:
    main(["-o", str(tmp_path / "demo"), "--films", "2"])
    output = capsys.readouterr()
    text = (output.out + output.err).replace("\n", " ")
    assert "Right answers in percent, 2 films" in text
    assert all(name in text for name in (*METHODS, *RATIOS, "all tokens"))
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "The answer is" in page
    assert (tmp_path / "demo" / "film.mp4").exists()


def test_refuses_a_foreign_or_missing_checkpoint_in_one_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    for name, problem in (("foreign", "no SHA256SUMS, so this is not a checkpoint"), ("gone", "No such file")):
        with pytest.raises(SystemExit):
            main(["-o", str(tmp_path / "demo"), "--checkpoint", str(tmp_path / name)])
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert problem in line


def test_the_question_of_the_report_is_the_one_that_divides_the_methods_most() -> None:
    questions = [Question("what", str(number), "", "cup") for number in range(4)]
    questions += [Question("scene", "4", ""), Question("present", "5", "no", "cat")]
    full = np.array([False, True, True, True, True, True])
    right = {("a", "1/8"): np.array([1, 1, 1, 1, 1, 1]), ("b", "1/8"): np.array([0, 1, 0, 0, 0, 0])}
    assert choose_question(questions, ["cup", "lamp"], right, full) is questions[2]
    assert choose_question(questions[4:], ["cup"], {}, full[4:]) is None


def test_the_subject_is_what_the_question_asks_for() -> None:
    film = plan_film(0)
    question = next(question for question in QuestionPicker(0).pick(film, 3) if question.kind == "where")
    answers = {("floc", "1/8"): question.answer, ("floc", "1/16"): "nowhere", ("random", "1/8"): "nowhere"}
    subject = make_subject(film, question, answers)
    labels = label_tokens(film, 112, 168, 28).ravel()
    assert {THINGS[label - len(PLACES)] for label in labels[subject.tokens]} == {question.thing}
    assert subject.answers["floc", "1/8"] == (question.answer, True)
    assert subject.verdict.endswith("Right at 1: floc; at none: random.")
