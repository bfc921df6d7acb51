"""The study of horizons by answers: what a rule gains, and what an oracle gains by noise alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.tables import horizon_answers
from benchmarks.tables.accuracy import RATIOS
from benchmarks.tables.horizon_answers import ALL, DETAIL, HORIZONS, list_accuracies, list_oracles, list_settings

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

from examples.tiny_video_model.checkpoint import CHECKPOINT
from examples.tiny_video_model.questions import KINDS, Question

FILMS = 60
ASKED = [[Question(kind, "", "") for kind in KINDS for _ in range(4)] for _ in range(FILMS)]


def make_answers(shares: np.ndarray) -> horizon_answers.Answers:
    """Draw answers that are right as often as shares say, [films, horizons]."""
    rng = np.random.default_rng(0)
    count = len(ASKED[0])
    answers = {(setting, ratio): [np.ones(count, bool)] * FILMS for setting in list_settings() for ratio in RATIOS}
    answers[ALL, "1"] = [np.ones(count, bool)] * FILMS
    for place, horizon in enumerate(HORIZONS):
        for ratio in RATIOS:
            answers[("floc", horizon, DETAIL), ratio] = [rng.random(count) < share for share in shares[:, place]]
    return answers


def test_every_horizon_of_a_rule_is_measured() -> None:
    for rule in horizon_answers.RULES:
        assert {horizon_answers.get_horizon(rule, ratio) for ratio in RATIOS} <= {*HORIZONS}


def test_a_rule_has_the_answers_of_its_horizon_at_each_ratio() -> None:
    shares = dict(zip(HORIZONS, (0.9, 0.8, 0.7, 0.6), strict=True))
    answers = make_answers(np.tile([*shares.values()], (FILMS, 1)))
    rows = {record["name"]: record for record in list_accuracies(answers, ASKED) if record["kind"] == "horizon"}
    for rule, record in rows.items():
        for ratio in RATIOS:
            assert record["values"][ratio] == pytest.approx(shares[horizon_answers.get_horizon(rule, ratio)], abs=0.03)
    assert rows["4"]["values"]["1/64"] > rows[horizon_answers.AUTO]["values"]["1/64"] + 0.05
    assert rows["4"]["interval"][0] > 0
    assert rows["no limit"]["difference"] == pytest.approx(-0.28, abs=0.02)
    assert rows["no limit"]["interval"][1] < -0.2


def test_an_oracle_gains_nothing_from_noise_on_other_questions() -> None:
    for record in list_oracles(make_answers(np.full((FILMS, 4), 0.8)), ASKED):
        assert record["same"]["interval"][0] > 0.03
        assert abs(record["other half"]["difference"]) < 0.03
        assert abs(record["other film"]["difference"]) < 0.03
        assert sum(record["chosen"]) == FILMS * (4 if record["keep"] == "mean" else 1)


def test_an_oracle_finds_what_depends_on_the_film() -> None:
    shares = np.full((FILMS, 4), 0.6)
    shares[np.arange(FILMS), np.arange(FILMS) % 4] = 0.9  # a quarter of the films for each horizon
    for record in list_oracles(make_answers(shares), ASKED):
        assert record["other half"]["interval"][0] > 0.1
        assert record["same"]["difference"] > record["other half"]["difference"]
        assert record["other film"]["interval"][0] < 0.05


def test_rules_and_models_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(horizon_answers, "LENGTHS", (16,))
    monkeypatch.setattr(horizon_answers, "METHODS", ("kmeans",))
    monkeypatch.setattr(horizon_answers, "SMALL_FILMS", 1)
    monkeypatch.setattr(horizon_answers, "QUESTIONS", 1)
    arguments = ["--small", "--results", str(tmp_path), "--checkpoint", str(CHECKPOINT)]
    assert main(["horizon-answers", *arguments]) == 0
    document = json.loads((tmp_path / "horizon-answers.json").read_text())
    first, second = document["models"]
    assert first["accuracy"] == second["accuracy"]
    rows = {(record["kind"], record["name"]): record for record in first["accuracy"]}
    assert {name for kind, name in rows if kind == "horizon"} == {*horizon_answers.RULES}
    # 16 slices: a horizon of 16 is none, and at 1/4 to 1/32 the least horizon is that of the default
    assert rows["horizon", "16"]["values"] == rows["horizon", "no limit"]["values"]
    default = rows["horizon", horizon_answers.AUTO]
    assert default["difference"] == 0
    assert all(rows["horizon", "4"]["values"][ratio] == default["values"][ratio] for ratio in RATIOS[:4])
    assert rows["all tokens", ""]["mean"] >= 0.9
    with pytest.raises(SystemExit):
        main(["horizon-answers", "--processes", "2"])
