"""Worthless replies that a judge is trained on."""

from __future__ import annotations

from mapo.judges.audit.probes import probe_texts
from mapo.roles.additions import additions, texts, worthless
from support.recordings import EMPATHY, recordings

OWN = recordings(3, 3, turns=30)


def every():
    return [(r, a) for r in OWN for a in additions(r, ["a reply of another dialogue"], 0.5, 0, EMPATHY)]


def test_about_the_share_of_turns_gets_one():
    assert 0.4 < len(every()) / (9 * 30) < 0.6
    assert additions(OWN[0], [], 0.0, 0, EMPATHY) == []


def test_replaced_replies_earn_nothing_and_appended_ones_what_was_recorded():
    for recording, added in every():
        recorded = recording.dialogue.turns[added.number - 1]
        reply = added.turns[-1].reply.text
        if added.kind.startswith("appended"):
            assert reply.startswith(recorded.reply.text) and added.levels == recorded.levels
        else:
            assert all(m.progress.level == 0 and m.regression.level < 0 for m in added.levels.values())
        assert (
            len(added.turns) == added.number
            and added.turns[:-1] == recording.dialogue.turns[: added.number - 1]
        )


def test_many_kinds_occur():
    assert len({added.kind for _, added in every()}) >= 10


def test_the_same_seed_gives_the_same_additions():
    assert additions(OWN[0], ["x"], 0.5, 1, EMPATHY) == additions(OWN[0], ["x"], 0.5, 1, EMPATHY)
    assert additions(OWN[0], ["x"], 0.5, 1, EMPATHY) != additions(OWN[0], ["x"], 0.5, 2, EMPATHY)


def test_a_recorded_harm_is_kept():
    levels = EMPATHY.levels(C=(2, -2), A=(1, 0))
    marks = worthless(levels, EMPATHY)
    assert [marks[k].regression.level for k in "CAP"] == [-2, -1, -1]


def test_languages_without_texts_get_english_ones():
    assert texts("fi", "stock") == texts("en", "stock")
    assert texts("zh-TW", "stock") == texts("zh", "stock") != texts("en", "stock")


def test_no_text_of_the_audit_is_trained_on():
    """The probes must measure something that the judge has not seen."""
    audited = str(probe_texts())
    kinds = ("stock", "flattery", "keywords")
    assert not [t for lang in ("en", "zh") for kind in kinds for t in texts(lang, kind) if t in audited]
