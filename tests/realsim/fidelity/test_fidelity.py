"""Fidelity of simulated users: features, the classifier, the score, and the command."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from mapo.errors import InputError
from mapo.evals.empa.result_files import write_result
from mapo.realsim.fidelity.compare import compare_users, tables
from mapo.realsim.fidelity.discriminator import FOLDS, auc, fit, fold_of, ngram_rows
from mapo.realsim.fidelity.features import FEATURES, feature_rows
from mapo.realsim.fidelity.reading import UserMessages, read_simulated
from mapo.show.tables import plain_rows
from mapo.store import JsonlWriter
from mapo.types import Dialogue, Reply, Turn
from support.command import mapo
from support.recordings import EMPATHY, recordings

WORDS = re.findall(
    r"\w+", "the boat is gone and nobody asked me about it so i went home in the rain that day"
)


def talk(seed: int, *, polite: bool = False, count: int = 5) -> UserMessages:
    """A user of random words; a polite one thanks and writes whole sentences."""
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]
    if polite:
        lines = [f"Thank you! {line.capitalize()}." for line in lines]
    return UserMessages(f"g{seed}", tuple(lines))


def features_of(*messages: str) -> dict[str, float]:
    return dict(zip(FEATURES, feature_rows([messages])[0], strict=True))


def test_features_of_a_user():
    f = features_of("I am sad. Why me?", "maybe i guess", "Thanks, that helps.")
    assert f["messages"] == 3
    assert f["words per message"] == pytest.approx((5 + 3 + 3) / 3)
    assert f["questions"] == f["hedges"] == f["feelings"] == f["politeness"] == pytest.approx(1 / 3)
    assert f["without final punctuation"] == pytest.approx(1 / 3)
    assert f["first person"] == pytest.approx(3 / 11)
    assert f["told in the first third"] == pytest.approx(5 / 11)
    assert f["warm last message"] == 1


def test_features_of_a_chinese_user():
    f = features_of("我很难过，为什么是我？", "也许吧", "谢谢你，我好多了。")
    assert f["first person"] > 0.1
    assert f["questions"] == f["hedges"] == f["feelings"] == f["politeness"] == pytest.approx(1 / 3)


def test_repetition_counts_sequences_of_earlier_messages():
    line = "nobody asked me about the boat"  # two sequences of five words
    assert features_of(line, line)["repetition"] == 0.5
    assert features_of(line, "it rains on the old shed")["repetition"] == 0


def test_the_auc_counts_pairs():
    scores, simulated = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])
    # pairs (real, simulated): 0.1 < 0.4, 0.1 < 0.9, 0.4 = 0.4 (half), 0.4 < 0.9
    assert auc(scores, simulated) == pytest.approx(3.5 / 4)
    # the second message twice: pairs 2 + 2 * (0.5 + 1) of 6
    assert auc(scores, simulated, np.array([1.0, 2, 1, 1])) == pytest.approx(5 / 6)


def test_the_weights_are_at_a_minimum():
    """The gradient of the balanced log loss plus the penalty is nearly 0."""
    rows = ngram_rows([*talk(1).messages, *talk(2, polite=True).messages])
    simulated = np.arange(10) >= 5
    w = fit(rows, simulated)
    x = np.hstack([rows, np.ones((10, 1))])
    gradient = x.T @ ((1 / (1 + np.exp(-(x @ w))) - simulated) * 0.1) + 1e-3 * np.append(w[:-1], 0)
    assert np.abs(gradient).max() < 1e-3


def test_groups_are_never_split_between_folds():
    groups = [f"g{n // 3}" for n in range(60)]
    simulated = np.arange(60) >= 30
    folds = fold_of(simulated, groups)
    assert all(len({*folds[np.array(groups) == g]}) == 1 for g in set(groups))
    assert {*folds[simulated]} == {*folds[~simulated]} == set(range(FOLDS))


def test_a_story_that_both_sides_tell_is_in_one_fold():
    groups = [f"g{n % 10}" for n in range(20)]
    folds = fold_of(np.arange(20) >= 10, groups)
    assert folds[:10].tolist() == folds[10:].tolist()


def test_equal_users_cannot_be_told_apart():
    result = compare_users([talk(n) for n in range(40)], [talk(n) for n in range(100, 140)])
    assert result.auc_interval[0] < 0.5 < result.auc_interval[1]
    assert result.score > 0.8
    assert max(abs(each.effect) for each in result.features) < 0.7


def test_other_users_are_told_apart_and_the_features_say_why():
    result = compare_users([talk(n) for n in range(40)], [talk(n, polite=True) for n in range(100, 140)])
    assert result.auc > 0.99 and result.score < 0.05
    by_name = {each.name: each for each in result.features}
    assert by_name["warm last message"].simulated == 1 and by_name["politeness"].real == 0
    assert by_name["words per message"].interval[0] > 0
    assert abs(by_name["messages"].effect) < 1e-9


def test_too_few_people_are_refused():
    many = [talk(n) for n in range(40)]
    with pytest.raises(InputError, match="of 19 people or scenarios are too few"):
        compare_users(many, many[:19])
    with pytest.raises(InputError, match="40 simulated dialogues of 1 people"):
        compare_users(many, [replace(each, group="one") for each in many])


def test_the_notes_say_what_limits_the_comparison():
    chinese = [UserMessages(f"g{n}", ("我今天真的很累，没有人听我说话",) * 12) for n in range(20)]
    notes = " ".join(compare_users([talk(n) for n in range(20)], chinese).notes)
    assert "mostly latin, the simulated ones han" in notes and "twice as long" in notes
    assert "Fewer than 100 dialogues" in notes


def write_run(folder, users, usable=True):
    (folder / "dialogues").mkdir(parents=True)
    with JsonlWriter(folder / "dialogues" / "d.jsonl") as writer:
        for n, user in enumerate(users):
            turns = tuple(Turn(text, Reply("Mm.")) for text in ("opening", *user.messages))
            error = None if usable else "gone"
            start = (0.0,) * 3
            writer.write_dialogue(
                Dialogue(f"d{n}", user.group, "m", "empathy", "published", {}, start, turns, error=error)
            )


def write_real(file, users):
    def messages(user):
        for text in ("hello there", *user.messages):
            yield from ({"role": "user", "content": text}, {"role": "assistant", "content": "Mm."})

    file.write_text("\n".join(json.dumps({"messages": [*messages(user)]}) for user in users))


def test_the_opening_of_a_scenario_is_left_out(tmp_path):
    write_run(tmp_path / "run", [talk(1)])
    (user,), problems = read_simulated([tmp_path / "run"])
    assert user.messages == talk(1).messages and user.group == "g1" and problems == []


def test_broken_dialogues_are_left_out(tmp_path):
    write_run(tmp_path / "run", [talk(1)], usable=False)
    assert read_simulated([tmp_path / "run"])[0] == []


def test_a_folder_without_dialogues_is_refused(tmp_path):
    with pytest.raises(InputError, match="no recorded dialogues"):
        read_simulated([tmp_path])


def test_the_command(tmp_path):
    real, run, out = tmp_path / "real.jsonl", tmp_path / "run", tmp_path / "fidelity.json"
    write_real(real, [talk(n) for n in range(25)])
    write_run(run, [talk(n, polite=True) for n in range(100, 125)])
    shown = mapo("roles", "fidelity", "--real", real, "--simulated", run, "--out", out)
    assert "25 real and 25 simulated dialogues" in shown.stdout and "politeness" in shown.stdout
    data = json.loads(out.read_text())
    assert data["schema"] == "mapo.fidelity/1" and data["score"] < 0.05 and data["real"] == 25
    printed = mapo("roles", "fidelity", "--real", real, "--simulated", run, "--json").stdout
    assert json.loads(printed) == data


def test_the_table_shows_the_largest_differences_first():
    result = compare_users([talk(n) for n in range(25)], [talk(n, polite=True) for n in range(100, 125)])
    effects = [abs(float(row[3].split()[0])) for row in plain_rows(tables(result)[1])]
    assert effects == sorted(effects, reverse=True)


def test_result_files_are_read_and_damaged_ones_are_named(tmp_path):
    (recording,) = recordings(1, 1)
    write_result(recording.dialogue, EMPATHY, tmp_path)
    (tmp_path / "broken_result.json").write_text("{")
    (user,), (problem,) = read_simulated([tmp_path])
    assert user.messages == tuple(turn.user for turn in recording.dialogue.turns[1:])
    assert "broken_result.json" in problem


def test_messages_of_failed_calls_are_left_out(tmp_path):
    write_run(tmp_path / "run", [UserMessages("g", ("a line", "（错误：API调用失败）"))])
    assert read_simulated([tmp_path / "run"])[0][0].messages == ("a line",)


def test_damaged_lines_are_named(tmp_path):
    write_run(tmp_path / "run", [talk(1)])
    file = tmp_path / "run" / "dialogues" / "d.jsonl"
    file.write_bytes(b"{}\n" + file.read_bytes())
    users, (problem,) = read_simulated([tmp_path / "run"])
    assert len(users) == 1 and "line 1" in problem
