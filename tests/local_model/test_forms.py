"""Forms as token ids: where answers are read, and tokenizers that cannot."""

from __future__ import annotations

import pytest

from mapo.errors import InputError
from mapo.local_model.forms import form_tokens
from mapo.models.chat import Place
from support import tiny

DIGITS = ("0", "1", "2")


def test_a_form_is_its_labels_with_a_filler_for_every_answer_but_the_last():
    tokenizer = tiny.tokenizer()
    form = form_tokens(tokenizer, [Place("\nC progress:", DIGITS), Place("\nC regression:", ("0", "1"))])
    assert tokenizer.decode(form.ids) == "\nC progress:?\nC regression:"
    assert [tokenizer.decode(form.ids[: at + 1]) for at in form.reads] == [
        "\nC progress:",
        "\nC progress:?\nC regression:",
    ]
    assert [[tokenizer.decode([token]) for token in ids] for ids in form.options] == [
        ["0", "1", "2"],
        ["0", "1"],
    ]


def test_labels_are_tokenised_on_their_own():
    """The ids of a label do not depend on what stands before it, so that forms share their ids."""
    tokenizer = tiny.tokenizer()
    one = form_tokens(tokenizer, [Place("at", DIGITS)])
    two = form_tokens(tokenizer, [Place("th", DIGITS), Place("at", DIGITS)])
    assert two.ids[-len(one.ids) :] == one.ids


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (Place("x:", ("0", "nobody")), "'nobody' is [2-6] tokens"),
        (Place("x:", ("0", "")), "'' is 0 tokens"),
        (Place("x:", ("1", "1")), "1, 1 do not have a token each"),
        (Place("x:", ()), "do not have a token each"),
        (Place("", DIGITS), "has no label"),
    ],
)
def test_forms_that_cannot_be_read_out_are_refused(place, problem):
    with pytest.raises(InputError, match=problem):
        form_tokens(tiny.tokenizer(), [place])
