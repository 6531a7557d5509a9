"""Files of conversations: shapes, encodings, and everything that can be wrong with a line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import InputError
from mapo.realsim.reading.decode import lines_of
from mapo.realsim.reading.read import KINDS, LONGEST_TURN, files_of, read_sources
from support.command import mapo
from support.writers import talk, write_jsonl

GOOD = talk("I feel lost.", "Why?", "Since spring, nothing holds.", "Tell me.")
CHINESE = talk("我很难过。", "怎么了？", "睡不着，心里堵得慌。", "我在听。")


def read(tmp_path, name: str, content: str | bytes, **kw):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_sources([path], **kw)


def said(source, number: int = 0) -> list[tuple[str, str]]:
    return [tuple(turn) for turn in source.conversations[number].turns]


ALTERNATING = [
    ("person", "I feel lost."),
    ("partner", "Why?"),
    ("person", "Since spring, nothing holds."),
    ("partner", "Tell me."),
]


def rows(person: str, partner: str) -> str:
    """The conversation, each side in its form."""
    return "".join((person if side == "person" else partner).format(text) for side, text in ALTERNATING)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", json.dumps(GOOD) + "\n"),
        ("a.jsonl", json.dumps(GOOD["messages"])),
        ("a.json", json.dumps([GOOD], indent=2)),
        ("a.json", json.dumps(GOOD["messages"])),
        ("a.json", json.dumps({"id": 7, "dialogue": GOOD["messages"]})),
        (
            "a.jsonl",
            json.dumps(
                {
                    "conversations": [
                        {"from": "system", "value": "Be kind."},
                        {"from": "human", "value": "I feel lost."},
                        {"from": "gpt", "value": "Why?"},
                        {"from": "human", "value": "Since spring, nothing holds."},
                        {"from": "gpt", "value": "Tell me."},
                    ]
                }
            ),
        ),
        (
            "a.jsonl",
            json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": [{"text": "I feel lost."}, {"type": "image"}]},
                        {"role": "assistant", "content": "Why?"},
                        {"role": "assistant", "content": None},
                        {"role": "user", "content": ["Since spring, nothing holds."]},
                        {"role": "assistant", "content": "Tell me."},
                    ]
                }
            ),
        ),
        ("a.txt", rows("User: {}\n", "Therapist: {}\n")),
        ("a.csv", "role,content\n" + rows('user,"{}"\n', 'assistant,"{}"\n')),
        ("a.tsv", "speaker\ttext\n" + rows("client\t{}\n", "helper\t{}\n")),
        ("a.csv", "conversation_id,prompt,response\n" + rows('1,"{}",', '"{}"\n')),
    ],
)  # fmt: skip
def test_the_common_shapes(tmp_path, name, content):
    source = read(tmp_path, name, content)
    assert source.problems == [] and said(source) == ALTERNATING


def test_a_transcript_of_several_with_lines_that_go_on(tmp_path):
    text = """A stray line before anybody speaks
---
[10:02] Rosalind: It began
in the spring.

Counsellor: Yes?
Rosalind: And
went on: and on.
=====
Counsellor: Hello.
Mira: Hi. See https://example.org
Mira: I am here.
"""
    source = read(tmp_path, "a.txt", text)
    assert [(p.line, p.text) for p in source.problems] == [
        (1, "no speaker before the text; write each message as `Speaker: text`")
    ]
    first, second = source.conversations
    assert first.turns[0] == ("person", "It began\nin the spring.") and first.speakers == ("Rosalind",)
    assert first.turns[2] == ("person", "And\nwent on: and on.")
    assert second.line == 10 and [turn.side for turn in second.turns] == ["partner", "person", "person"]


STAMPED = {
    "plain": "2024-01-02 10:1{n} {who}: {text}",
    "iso": "2024-01-02T10:11:1{n}Z {who}: {text}",
    "brackets": "[10:1{n}, 1/2/2024] {who}: {text}",
    "dash": "1/2/24, 10:1{n} - {who}: {text}",
    "american": "12/31/23, 9:1{n} PM - {who}: {text}",
    "dots": "[02.01.24, 10:11:1{n}] {who}: {text}",
    "time": "10:1{n} {who}: {text}",
    "behind": "{who} (10:1{n}): {text}",
    "wechat": "{who} 10:1{n}\n{text}",
    "wechat, dated": "{who}  2024-01-02 10:11:1{n}\n{text}\n",
    "wechat, date first": "2024-01-02 10:11:1{n} {who}\n{text}\n",
    "chinese": "2024年1月2日 上午10:1{n} {who}：{text}",
}


@pytest.mark.parametrize("form", STAMPED)
def test_dates_and_times_are_no_speakers(tmp_path, form):
    names = {"person": "Anna", "partner": "Bert B."}
    lines = [
        STAMPED[form].format(n=number, who=names[side], text=text)
        for number, (side, text) in enumerate(ALTERNATING)
    ]
    source = read(tmp_path, "a.txt", "\n".join(lines))
    assert said(source) == ALTERNATING and source.conversations[0].speakers == ("Anna", "Bert B.")


def test_what_a_program_notes_is_nobodys(tmp_path):
    text = """1/2/24, 10:10 - Messages are encrypted. Nobody can read them.
1/2/24, 10:11 - Anna: I feel lost.
at 10:30
12:45: still
1/2/24, 10:11 - Bert: Why?
1/2/24, 10:12 - Anna left
1/2/24, 10:13 - Anna: I am back
See you 10:45
1/2/24, 10:14 - Bert: Yes
"""
    turns = said(read(tmp_path, "a.txt", text))
    assert turns == [
        ("person", "I feel lost.\nat 10:30\n12:45: still"),
        ("partner", "Why?"),
        ("person", "I am back\nSee you 10:45"),
        ("partner", "Yes"),
    ]


def test_two_strangers_and_the_one_who_is_named(tmp_path):
    text = "Anna: Hello.\nBert: I am low.\nAnna: Why?\nBert: It is winter.\n"
    assert said(read(tmp_path, "a.txt", text))[0] == ("person", "Hello.")
    assert said(read(tmp_path, "a.txt", text, person="bert"))[0] == ("partner", "Hello.")


def test_rows_of_several_conversations_and_pairs(tmp_path):
    rows = (
        "id,role,text\na,user,one\nb,user,three\na,assistant,two\nb,assistant,four\na,user,five\nb,user,six\n"
    )
    source = read(tmp_path, "a.csv", rows)
    assert [c.line for c in source.conversations] == [2, 3] and said(source, 1)[0] == ("person", "three")
    pairs = 'question,answer\n"a\nb",c\n,\nd,e\n'
    source = read(tmp_path, "a.csv", pairs)
    assert [p.text for p in source.problems] == [
        "the person writes 1 message; at least 2 are needed"
        " (if the roles are reversed, name the person with --person)"
    ] * 2
    assert [p.line for p in source.problems] == [2, 5]


def test_bad_lines_are_reported_and_the_rest_goes_on(tmp_path):
    lines = [
        '{"messages": [{"role": "user"',
        "",
        json.dumps(GOOD),
        "[1, 2]",
        '"text"',
        "{}",
        json.dumps({"messages": []}),
        json.dumps({"messages": [{"content": "who?"}]}),
        json.dumps({"messages": [{"role": "user", "content": 7}]}),
        json.dumps(talk("only me", "   ", "and me again")),
        json.dumps(talk("", " ", "", "")),
        json.dumps(
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]}
        ),
        json.dumps(talk("one line", "one answer")),
        json.dumps(GOOD),
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ]
    source = read(tmp_path, "a.jsonl", "\n".join(lines))
    assert len(source.conversations) == 1 and source.conversations[0].line == 3
    told = {p.line: p.text for p in source.problems}
    assert sorted(told) == [1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert told[1].startswith("invalid JSON (") and "message 1 is not an object" in told[4]
    assert told[5] == "expected an object or a list of messages" and "no list of messages" in told[6]
    assert told[7] == told[11] == "the conversation is empty"
    assert "names no speaker" in told[8] and "has no text" in told[9]
    assert told[10] == told[12]
    assert told[10].startswith("only one side speaks;") and "writes 1 message" in told[13]
    assert told[14].startswith("this is a duplicate of the conversation at line 3;")
    assert "nested too deeply" in told[15] and "digits" in told[16]


def test_the_same_conversation_in_another_file(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [GOOD])
    write_jsonl(tmp_path / "b.jsonl", [CHINESE, GOOD])
    (tmp_path / "notes.md").write_text("no conversations")
    source = read_sources([tmp_path])
    assert len(source.conversations) == 2 and len(source.files) == 2
    assert [(p.file, p.line, p.text) for p in source.problems] == [
        (2, 2, "this is a duplicate of the conversation at line 1 of file 1; no action is needed")
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings_of_whole_files(tmp_path, encoding):
    text = "".join(json.dumps(x, ensure_ascii=False) + "\r\n" for x in (GOOD, CHINESE))
    source = read(tmp_path, "a.jsonl", text.encode(encoding))
    assert len(source.conversations) == 2 and said(source, 1)[0] == ("person", "我很难过。")
    assert not source.problems


def test_mixed_encodings_are_told_line_by_line(tmp_path):
    accented = talk("Café closed, déjà vu.", "Why?", "I was très lost.", "Yes.")
    lines = [
        json.dumps(GOOD).encode(),
        json.dumps(CHINESE, ensure_ascii=False).encode("gb18030"),
        json.dumps(accented, ensure_ascii=False).encode("cp1252"),
        b'{"messages": "\x81\x8d \x90"}',
    ]
    source = read(tmp_path, "a.jsonl", b"\n".join(lines))
    assert [said(source, i)[0][1] for i in (1, 2)] == ["我很难过。", "Café closed, déjà vu."]
    noted = {note.line: note.text for note in source.notes}
    assert noted[2].endswith("read as gb18030") and noted[3].endswith("read as cp1252")
    [told] = source.problems
    assert told.line == 4 and "unknown encoding" in told.text


def test_another_encoding_is_one_note_for_a_file(tmp_path):
    said_often = [talk("我很难过。", "怎么了？", f"第{i}次了。", "嗯。") for i in range(30)]
    text = "\n".join(json.dumps(one, ensure_ascii=False) for one in said_often)
    source = read(tmp_path, "a.jsonl", text.encode("gb18030"))
    assert len(source.conversations) == 30 and not source.problems
    [note] = source.notes
    assert (note.line, note.text) == (1, "30 lines from here on are not UTF-8; they were read as gb18030")
    done = mapo("scenarios", "make", tmp_path / "a.jsonl", "--out", tmp_path / "o", "--local")
    assert "30 lines from here on" in done.stderr and "; 0 dropped" in done.stderr


def test_broken_utf_16_is_read_as_far_as_it_goes():
    lines = list(lines_of("ab\ncd".encode("utf-16") + b"x"))
    assert "not valid UTF-16" in lines[0].problem and lines[1].text == "ab"


@pytest.mark.parametrize("escaped", [True, False])
def test_invisible_characters_do_not_hide_anything(tmp_path, escaped):
    hidden = talk("Call 555\u200b-010\u202e-9921\x00", "?", "now", "ok")
    source = read(tmp_path, "a.jsonl", json.dumps(hidden, ensure_ascii=escaped))
    assert said(source)[0] == ("person", "Call 555-010-9921\ufffd")
    shown = read(tmp_path, "b.txt", "User: 55\u200b5\u202e\nHelper: ?\nUser: b\n")
    assert said(shown)[0] == ("person", "555")


def test_long_conversations_are_cut_to_where_the_person_says_most(tmp_path):
    lines = [f"line {i}" + (" and more" * 20 if 6000 <= i < 6010 else "") for i in range(10_000)]
    source = read(tmp_path, "a.jsonl", json.dumps(talk(*lines)), window=20)
    [found] = source.conversations
    assert len(found.turns) == 20 and found.cut.startswith("only turns ") and "of 10000" in found.cut
    assert any(turn.text.startswith("line 6000 and") for turn in found.turns)
    assert any(turn.text.startswith("line 6008 and") for turn in found.turns)
    long = read(tmp_path, "b.jsonl", json.dumps(talk("a" * 9000, "b", "c", "d")))
    assert long.conversations[0].cut == f"1 turns are cut to {LONGEST_TURN} characters"
    assert len(long.conversations[0].turns[0].text) == LONGEST_TURN


def test_all_together_stays_within_what_a_model_can_read(tmp_path):
    source = read(tmp_path, "a.jsonl", json.dumps(talk(*["x" * 3900] * 60)))
    [found] = source.conversations
    assert sum(len(turn.text) for turn in found.turns) <= 40_000 and "40000 characters in all" in found.cut


def test_an_unclosed_quote_costs_its_row_alone(tmp_path):
    table = """role,text
user,"one
more"
assistant,"never closed
user,two
assistant,"fine, ""really"" fine"
user,"so" I said
assistant,last
user,"open to the end
assistant,after
"""
    source = read(tmp_path, "a.csv", table)
    assert [(p.line, p.text.partition(":")[0]) for p in source.problems] == [
        (4, "the row cannot be parsed"),
        (9, "the row cannot be parsed"),
    ]
    assert said(source) == [
        ("person", "one\nmore"),
        ("person", "two"),
        ("partner", 'fine, "really" fine'),
        ("person", "so I said"),
        ("partner", "last"),
        ("partner", "after"),
    ]


def test_tables_that_cannot_be_read(tmp_path):
    odd = read(tmp_path, "a.csv", "role,text\nuser,a\rb\nuser,a\nassistant,b\nuser,c\n")
    assert [p.line for p in odd.problems] == [2] and len(said(odd)) == 3
    assert "has no columns for speaker" in read(tmp_path, "a.csv", "x,y\n1,2\n").problems[0].text
    short = read(tmp_path, "a.csv", "role,text\nuser\nuser,a\nassistant,b\nuser,c\n")
    assert [(p.line, p.text) for p in short.problems] == [(2, "the row has only 1 columns")]
    assert len(short.conversations) == 1
    torn = read(tmp_path, "b.csv", 'role,text\nuser,"a\nassistant,b\n')
    assert torn.conversations == []
    assert read(tmp_path, "c.csv", "").problems == []


def test_json_that_is_none(tmp_path):
    assert read(tmp_path, "a.json", "[{]").problems[0].text.startswith("invalid JSON")
    assert "no list" in read(tmp_path, "a.json", "[{}, 3]").problems[0].text


SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("messages", "conversations", "role", "from", "content", "value", "text")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=300) | SHAPED.map(lambda x: json.dumps(x).encode()), st.sampled_from(KINDS))
def test_no_bytes_stop_the_reading(tmp_path_factory, data, kind):
    path = tmp_path_factory.mktemp("any") / f"x{kind}"
    path.write_bytes(data)
    source = read_sources([path])
    assert all(p.file == 1 and p.line >= 1 and p.text for p in source.problems)
    assert all(len(c.turns) > 2 and c.line >= 1 for c in source.conversations)


def test_paths_that_hold_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl", tmp_path / "a.pdf"):
        with pytest.raises(InputError, match="no conversation files found"):
            files_of([path])


def test_problems_are_shown_by_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"broken\n' + json.dumps(GOOD) + "\n" + json.dumps(talk(*["hi"] * 200))
    )
    done = mapo("scenarios", "make", tmp_path / "a.jsonl", "--out", tmp_path / "o", "--local")
    assert done.returncode == 0 and f"dropped: {tmp_path / 'a.jsonl'}, line 1: invalid JSON" in done.stderr
    assert (
        "cut: " in done.stderr
        and "of 200" in done.stderr
        and "2 usable conversations in 1 file;" in done.stderr
    )


def tree(*lines: str) -> dict:
    """A conversation as ChatGPT exports it, with a branch that was left."""
    nodes = {"root": {"parent": None, "message": None}}
    last = "root"
    for number, line in enumerate(lines):
        role = "assistant" if number % 2 else "user"
        message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [line]}}
        nodes[f"n{number}"] = {"parent": last, "message": message}
        last = f"n{number}"
    left = {"author": {"role": "assistant"}, "content": {"parts": ["Left behind."]}}
    nodes["other"] = {"parent": "n0", "message": left}
    return {"title": "x", "mapping": nodes, "current_node": last}


def test_an_export_of_chatgpt_is_read_along_its_last_branch(tmp_path):
    data = tree("I am lost.", "Where?", "At home.", "I see.")
    source = read(tmp_path, "a.json", json.dumps([data]).encode())
    assert [text for _, text in said(source, 0)] == ["I am lost.", "Where?", "At home.", "I see."]
    data["mapping"]["root"]["parent"] = "n3"  # a ring ends
    data["mapping"]["n1"]["message"] = {"author": "x"}
    assert len(said(read(tmp_path, "b.json", json.dumps([data]).encode()), 0)) == 3
    for broken in ({**data, "current_node": "gone"}, {"mapping": {"a": 1}, "current_node": "a"}):
        [problem] = read(tmp_path, "c.json", json.dumps([broken]).encode()).problems
        assert "leads to no messages" in problem.text


def test_a_question_and_its_answer_are_too_little(tmp_path):
    [problem] = read(tmp_path, "a.jsonl", b'{"prompt": "Why?", "response": "So."}').problems
    assert "a single question with its answer" in problem.text
