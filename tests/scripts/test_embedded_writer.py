"""The writer of the embedded texts: sampling, examples, written replies, the whole chain with tiny models."""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "scripts" / "embedded"
sys.path.insert(0, str(EMBEDDED))

import corpus  # noqa: E402
import make_judge  # noqa: E402
import make_policy  # noqa: E402
import reply_files  # noqa: E402
import sample_replies  # noqa: E402
import speaker  # noqa: E402
import texts  # noqa: E402
import writer  # noqa: E402
import writer_examples as examples  # noqa: E402
from documents import new_rows  # noqa: E402

from support import tiny  # noqa: E402

END = 0
MARK = [7, 8]
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18], [20, 21, 22]]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def pair(request):
    """A speaker and a model of the same random weights that transformers runs."""
    torch.manual_seed(0)
    model = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    }[request.param]().eval()
    return speaker.Speaker(copy.deepcopy(model), range(SHAPE["vocab_size"])), model


LONGEST = 12


def greedy(model, ids, longest=LONGEST):
    """Generate `longest` ids with transformers, one prompt at a time."""
    row = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=longest, do_sample=False
        )
    return out[0, len(ids) :].tolist()


def ended(ids, end):
    """Return the ids before the end; none of a reply that does not end."""
    return ids[: ids.index(end)] if end in ids else []


def latest(ids):
    """Return the id whose first place is the last, to take it for the end."""
    return max(ids, key=ids.index)


def head(hidden):
    return (hidden[:, :8].sum(-1) / 4).sigmoid()


def rated_alone(model, ids):
    with torch.no_grad():
        return head(model.model(input_ids=torch.tensor([ids])).last_hidden_state[:, -1]).item()


@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_replies_at_low_temperature_are_the_greedy_ones(pair, temperature):
    prompts, sizes = speaker.padded(PROMPTS, "cpu")
    whole = [greedy(pair[1], ids) for ids in PROMPTS]
    for end in map(latest, whole):
        replies, rated = pair[0].speak(prompts, sizes, None, 2, LONGEST, end, temperature=temperature)
        assert replies == [ended(ids, end) for ids in whole for _ in range(2)] and rated is None


def test_a_reply_goes_on_after_its_forced_ids(pair):
    forced = [[30], [31, 32, 33], [34, 35], [36], [37, 38], [39, 40, 41]]
    prompts, sizes = speaker.padded(PROMPTS, "cpu")
    whole = [greedy(pair[1], PROMPTS[k // 2] + ids) for k, ids in enumerate(forced)]
    for end in map(latest, whole):
        replies, _ = pair[0].speak(prompts, sizes, forced, 2, LONGEST, end, temperature=0)
        assert replies == [ended(ids, end) for ids in whole]


def test_a_reply_stops_at_the_end(pair):
    prompts, sizes = speaker.padded(PROMPTS, "cpu")
    whole = greedy(pair[1], PROMPTS[0])
    end = whole[5]
    replies, rated = pair[0].speak(prompts, sizes, None, 1, 12, end, temperature=0, head=head, mark=MARK)
    assert replies[0] == whole[: whole.index(end)]
    expected = rated_alone(pair[1], [*PROMPTS[0], *MARK, *replies[0], end])
    assert rated[0] == pytest.approx(expected, abs=1e-5)


def test_a_reply_cut_at_the_longest_length_is_dropped(pair):
    prompts, sizes = speaker.padded(PROMPTS[:1], "cpu")
    whole = greedy(pair[1], PROMPTS[0])
    end = latest(whole)
    for longest, reply in ((whole.index(end), []), (whole.index(end) + 1, ended(whole, end))):
        replies, rated = pair[0].speak(prompts, sizes, None, 1, longest, end, temperature=0, head=head)
        assert replies == [reply] and (rated[0] > 0) == bool(reply)


def test_replies_that_exist_are_rated_as_sampled_ones(pair):
    prompts, sizes = speaker.padded(PROMPTS, "cpu")
    replies = [[[40, 41], [42]], [], [[43, 44, 45]]]
    expected = [
        rated_alone(pair[1], [*ids, *MARK, *reply, END])
        for ids, some in zip(PROMPTS, replies, strict=True)
        for reply in some
    ]
    rated = pair[0].rate(prompts, sizes, replies, END, head, MARK)
    assert [len(some) for some in rated] == [2, 0, 1]
    assert rated[0] + rated[2] == pytest.approx(expected, abs=1e-5)


def test_only_the_given_ids_are_sampled(pair):
    allowed = [END, 50, 51, 52]
    own = speaker.Speaker(copy.deepcopy(pair[1]), allowed)
    torch.manual_seed(0)
    replies, _ = own.speak(*speaker.padded(PROMPTS, "cpu"), None, 8, 6, END, temperature=5.0)
    assert {token for reply in replies for token in reply} == {50, 51, 52}


def test_tokens_are_drawn_by_their_probability():
    torch.manual_seed(0)
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(20000, 1)
    count = torch.bincount(speaker._draw(logits, 1.0, 1.0), minlength=3) / 20000
    assert count.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.015)


def test_top_p_leaves_the_unlikely_ones_out():
    torch.manual_seed(0)
    logits = torch.tensor([0.2, 0.5, 0.3]).log().repeat(20000, 1)
    count = torch.bincount(speaker._draw(logits, 1.0, 0.75), minlength=3) / 20000
    assert count.tolist() == pytest.approx([0, 0.625, 0.375], abs=0.015)  # 0.5 and 0.3 make up 0.8


def test_batches_are_of_similar_sizes():
    assert [*speaker.batches([3, 9, 4, 8, 1], 2)] == [[1, 3], [2, 0], [4]]


def test_the_area_under_the_curve_is_the_chance_of_the_right_order():
    # of the 2 x 3 pairs, 4 are in order and 1 is a tie
    truth, probabilities = np.array([1, 0, 1, 0, 0]), np.array([0.9, 0.2, 0.4, 0.4, 0.6])
    assert writer.area(probabilities, truth) == pytest.approx(4.5 / 6)
    assert writer.area(probabilities, np.ones(5)) is None


def test_measured_thresholds_say_what_is_kept_and_makes_sense():
    probabilities, truth = np.array([0.96, 0.91, 0.85, 0.3]), np.array([1, 0, 1, 0])
    found = writer.measured(probabilities, truth)
    assert found["thresholds"]["0.9"] == {"kept": 0.5, "sense": 0.5}
    assert found["thresholds"]["0.95"] == {"kept": 0.25, "sense": 1.0}


PERSON = texts.Person(
    "x",
    [
        texts.Line(
            "I sold the bicycle.", replies=[("ask", "What did the bicycle cost?"), ("vague", "I see it.")]
        ),
        texts.Line("It was my brother's.", replies=[("detail", "The bicycle was your brother's, then.")]),
        texts.Line("Leave it.", "guarded", replies=[("room", "I will leave it, then.")]),
    ],
    [],
)
VERDICTS = [
    {"lines": ["Hello.", "I sold it."], "reply": reply, "sense": sense}
    for reply, sense in (("Who bought it?", 1), ("The of it.", 0), ("Buy it back.", "order"))
]


@pytest.fixture
def encoder():
    return examples.Encoder(tiny.tokenizer())


@pytest.fixture
def trees(encoder, monkeypatch):
    plain = frozenset(("what", "did", "the", "i", "see", "was", "then", "will", "it"))
    monkeypatch.setattr(corpus, "plain_words", lambda: plain)
    return [*examples.reply_trees([PERSON], encoder), *examples.verdict_trees(VERDICTS, encoder)]


def test_a_reply_is_learned_after_its_kind_and_a_verdict_after_a_mark(trees, encoder):
    branches = [b for tree in trees for b in tree.branches]
    text = encoder.tokenizer.decode
    assert [text(b.ids[: b.label]) for b in branches[:2]] == ["ask;", "vague:"]  # "cost" is new
    assert [text(b.ids[: b.label]) for b in branches[-3:]] == [examples.MARK] * 3
    assert [b.verdict for b in branches[-3:]] == [1, 0, 1]
    assert text(trees[1].prompt) == "I sold the bicycle.\nIt was my brother's.\n"


def test_replies_to_lines_with_held_out_verdicts_are_not_learned(encoder, monkeypatch):
    tested, learned = (line.text for line in PERSON.lines[:2])
    rows = [{"lines": [line], "reply": "Who has it?", "sense": 1} for line in (tested, learned)]
    monkeypatch.setattr(examples, "verdicts", lambda: rows)
    monkeypatch.setattr(examples, "is_held_out", lambda line: line == tested)
    trees, _ = examples.prepare([PERSON], [], encoder)
    lines = [
        (encoder.tokenizer.decode(tree.prompt).splitlines()[-1], tree.branches[0].verdict, tree.held_out)
        for tree in trees
    ]
    assert sorted(lines) == sorted(
        [
            (learned, examples.NO_VERDICT, False),
            (PERSON.lines[2].text, examples.NO_VERDICT, False),
            (tested, 1, True),
            (learned, 1, False),
        ]
    )


def test_examples_are_read_as_they_were_written(trees, tmp_path):
    tokens = np.arange(400, dtype=np.int32)
    examples.save_examples(tmp_path, trees, tokens)
    again, ids = examples.load_examples(tmp_path)
    assert np.array_equal(ids, tokens) and len(again) == len(trees)
    for one, two in zip(trees, again, strict=True):
        assert np.array_equal(one.prompt, two.prompt) and one.held_out == two.held_out
        for a, b in zip(one.branches, two.branches, strict=True):
            assert np.array_equal(a.ids, b.ids) and (a.label, a.verdict) == (b.label, b.verdict)


def test_packed_trees_give_the_hidden_states_of_single_replies(trees):
    """A branch sees its prompt and itself, whatever else is in the row."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, "vocab_size": 448})).eval()
    model.set_attn_implementation("sdpa")
    [batch] = examples.batches_of(trees, np.arange(448), examples.ROW)
    with torch.no_grad():
        hidden = model.model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask()
        ).last_hidden_state.flatten(0, 1)
        ordered = sorted(trees, key=lambda tree: -tree.size)
        text_at = iter(batch.text_at.tolist())
        verdict_at = iter(batch.verdict_at.tolist())
        for tree in ordered:
            for b in tree.branches:
                ids = torch.from_numpy(np.concatenate([tree.prompt, b.ids])).long()[None]
                alone = model.model(input_ids=ids).last_hidden_state[0]
                if b.verdict == examples.NO_VERDICT:
                    places = [next(text_at) for _ in b.ids[b.label :]]
                    assert torch.allclose(hidden[places], alone[-len(places) - 1 : -1], atol=1e-4)
                else:
                    assert torch.allclose(hidden[next(verdict_at)], alone[-1], atol=1e-4)


def test_batches_hold_every_branch_once_and_have_one_shape(trees):
    made = [*examples.batches_of(trees * 40, np.arange(448), 2 * examples.ROW, np.random.default_rng(0))]
    assert {batch.ids.shape for batch in made} == {(2, examples.ROW)}
    assert sum(batch.used for batch in made) == 40 * sum(tree.size for tree in trees)
    assert sum(len(batch.verdicts) for batch in made) == 40 * 3


def test_what_is_written_are_kinds_of_both_sorts():
    weights = writer.kind_weights([PERSON])
    for mood in ("story", "guarded", "eased"):
        assert sum(weights[mood][kind] for kind in texts.GOOD) == pytest.approx(writer.GOOD_SHARE)
    jobs = writer.jobs_of([PERSON, PERSON], weights, 200, 0)
    assert len(jobs) == 3 and {kind for _, kinds, _ in jobs for kind in kinds} == set(texts.KINDS)


class FixedSpeaker:
    """Says the same to every prompt; the last reply is unfinished and dropped."""

    def __init__(self, encoder, texts):
        self.replies = [*encoder.replies(texts), []]

    def speak(self, prompts, sizes, forced, each, *_, **__):
        assert len(forced) == len(sizes) * each == len(sizes) * len(self.replies)
        return self.replies * len(sizes), [*[0.9] * (each - 1), 0.0] * len(sizes)


def test_only_new_and_clean_replies_are_written(encoder):
    said = ["Who bought it?", "Who bought it?", "the of it", "I see it."]
    args = argparse.Namespace(rows=6, each=5, seed=0, device="cpu", temperature=1.0, top_p=1.0)
    jobs = [
        (["Hello.", line.text], ["ask", "order", "ask", "ask", "ask"], {r for _, r in line.replies})
        for line in PERSON.lines[:2]
    ]
    rows = writer.written_replies((FixedSpeaker(encoder, said), encoder, None), jobs, args)
    first, second = (
        [(x["kind"], x["reply"], x["sense"]) for x in rows if x["line"] == line.text]
        for line in PERSON.lines[:2]
    )
    assert first == [("ask", "Who bought it?", 0.9)]  # "I see it." is among the replies of the first line
    assert second == [("ask", "Who bought it?", 0.9), ("ask", "I see it.", 0.9)]


def reply_file(path, rows):
    path.parent.mkdir(exist_ok=True)
    with new_rows(path) as add:
        for row in rows:
            add(row)
    return path


def row(reply, sense=0.9, kind="ask", line=PERSON.lines[0].text):
    return {"line": line, "kind": kind, "reply": reply, "sense": sense}


def test_written_replies_are_added_to_their_lines(tmp_path):
    unfit = ["What did the bicycle cost?", "no capital, this.", "Too " + "very " * 12 + "long."]
    rows = [row("Who bought the bicycle?"), row("The bicycle is it.", 0.4), *map(row, unfit)]
    reply_file(tmp_path / "one" / "replies-000.jsonl.gz", rows)
    read = reply_file(tmp_path / "read.jsonl.gz", [row("Sold to whom?") | {"lines": ["Hi.", "Leave it."]}])
    found = reply_files.load_written([tmp_path / "one"], [read])
    [person] = reply_files.with_written([PERSON], found, 0.85)
    assert [len(line.replies) for line in person.lines] == [3, 1, 2]
    assert person.lines[0].replies[-1] == ("ask", "Who bought the bicycle?")
    assert person.lines[2].replies[-1] == ("ask", "Sold to whom?")
    assert [len(line.replies) for line in PERSON.lines] == [2, 1, 1]  # these are not changed


def test_only_so_many_are_added_and_always_the_same(tmp_path):
    rows = [row(f"Who has bicycle {n}?") for n in range(30)]
    found = [
        reply_files.load_written([], [reply_file(tmp_path / f"{k}.jsonl.gz", some)])
        for k, some in enumerate((rows, rows[::-1]))
    ]
    [one], [two] = (reply_files.with_written([PERSON], each, 0.85) for each in found)
    assert len(one.lines[0].replies) == 2 + reply_files.MOST and one == two


def test_long_and_unclean_replies_take_no_place_of_others(tmp_path):
    unfit = [row(f"no capital {n}.") for n in range(50)] + [row("Long " * 12 + f"{n}.") for n in range(50)]
    fit = [row(f"Who has bicycle {n}?") for n in range(reply_files.MOST)]
    found = reply_files.load_written([], [reply_file(tmp_path / "read.jsonl.gz", [*unfit, *fit])])
    [person] = reply_files.with_written([PERSON], found, 0.85)
    assert {reply for _, reply in person.lines[0].replies[2:]} == {one["reply"] for one in fit}


def test_a_judge_learns_what_is_clearly_sense_or_nonsense(tmp_path):
    senses = {"Who bought it?": 0.95, "Who did?": 0.5, "The of it.": 0.1}
    rows = [row(reply, sense) for reply, sense in senses.items()]
    found = reply_files.load_written([], [reply_file(tmp_path / "read.jsonl.gz", rows)])
    expected = [("ask", "Who bought it?"), (corpus.NONSENSE, "The of it.")]
    assert make_judge.rated(found) == {PERSON.lines[0].text: expected}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[1]", "row 1 is not an object"),
        ("{", "row 1 is not JSON"),
        (json.dumps(row("Yes.", kind="nice")), "unknown kind 'nice'"),
        (json.dumps(row("Yes.", sense=2)), "needs a probability as 'sense', not 2"),
        (json.dumps(row("")), "needs texts"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, content, problem):
    path = tmp_path / "read.jsonl.gz"
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(ValueError, match=problem) as error:
        reply_files.load_written([], [path])
    assert str(path) in str(error.value)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no files replies"):
        reply_files.load_written([tmp_path])


CHAIN = """
import sys
import texts

everybody = texts.written_people()
chosen = [p for p in everybody if any(line.replies for line in p.lines)][:90]
texts.written_people = lambda: chosen  # fewer people: reading and naming all replies takes a minute

import torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
import corpus, make_judge, make_policy, sample_replies, writer

torch.compile = lambda f, **_: f
held_out_rows = make_judge.held_out_rows
make_judge.held_out_rows = lambda *args: held_out_rows(*args)[:40]
END = "<|endoftext|>"
people = texts.known_people()
plain = Tokenizer(models.BPE())
plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
plain.decoder = decoders.ByteLevel()
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
trainer = trainers.BpeTrainer(
    vocab_size=1200, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
)
plain.train_from_iterator(corpus.tokenizer_texts(people[:30]), trainer)
shape = LlamaConfig(
    vocab_size=plain.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
)
LlamaForCausalLM(shape).save_pretrained("smollm2")
plain.save("smollm2/tokenizer.json")
config = Qwen2Config(
    vocab_size=plain.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
    bos_token_id=None, eos_token_id=0, initializer_range=0.2,
)
Qwen2ForCausalLM(config).save_pretrained("qwen")
PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=END).save_pretrained("qwen")

for number, line in enumerate(Path(sys.argv[1]).read_text().splitlines()):
    module, *options = line.split()
    print(f"== {line}", flush=True)
    sys.argv = [module, *options]
    try:
        globals()[module].main()
    except SystemExit as end:
        if options[-2:] != ["--minutes", "0"]:
            raise
        print("exit:", end)
"""
TINY = "--dialogues 40 --batch 2048 --tokens 4000 --device cpu"
SHAPED = f"{TINY} --width 64 --layers 1"
LORA = "--model qwen --adapter adapter"
WRITE = f"writer write {LORA} --out written --each 4 --people 3 --shard 60 --device cpu"
COMMANDS = f"""\
writer prepare --model qwen --out examples --people 40 --verdicts 300
writer train --model qwen --examples examples --out adapter --batch 2048 --passes 1 --lr 3e-3 --device cpu
{WRITE} --minutes 0
{WRITE}
make_policy --base smollm2 --whole --out teacher --vocab 1000 {TINY}
make_policy --base smollm2 --teacher teacher --out policy {SHAPED} --written written --least 0 --all-until 0
sample_replies --model policy --out sampled.jsonl.gz --written written --dialogues 6 --each 3 --device cpu
writer read {LORA} --sampled sampled.jsonl.gz --out read.jsonl.gz --people 20 --device cpu
make_policy --start policy --out refined {TINY} --written written --read read.jsonl.gz --least 0
make_judge --policy refined --start --out judge {SHAPED} --part even --written written --read read.jsonl.gz
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A folder in which one process has run all commands with tiny models."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "commands").write_text(COMMANDS)
    paths = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, EMBEDDED))),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHAIN, "commands"],
        cwd=folder,
        env=paths,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert not done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "log").write_text(done.stdout)
    return folder


def rows_of(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_training_measures_verdicts_on_held_out_lines(chain):
    made = json.loads((chain / "adapter" / "made.json").read_text())
    assert made["held_out"]["verdicts"] > 10 and 0 <= made["held_out"]["area"] <= 1
    assert made["padding"] < 0.1 and made["options"]["model"] == "qwen"


def test_training_lowers_the_text_loss(chain):
    made = json.loads((chain / "adapter" / "made.json").read_text())
    first = re.search(r"step 1 .* text ([\d.]+) ", (chain / "log").read_text())[1]
    assert made["text_loss"] < float(first) - 0.2


def test_a_teacher_has_all_layers_of_the_base_and_the_tokens_of_the_policy(chain):
    shape, policy = (json.loads((chain / name / "config.json").read_text()) for name in ("teacher", "policy"))
    assert (shape["num_hidden_layers"], shape["hidden_size"]) == (2, 64)
    assert shape["vocab_size"] == policy["vocab_size"] <= 1000 and shape["eos_token_id"] == 1
    assert (chain / "teacher" / "tokenizer.json").read_text() == (
        chain / "policy" / "tokenizer.json"
    ).read_text()
    assert {"replies", "teacher"} <= json.loads((chain / "policy" / "made.json").read_text()).keys()


def test_the_same_command_continues_writing(chain):
    shards = sorted(path.name for path in (chain / "written").glob("replies-*.jsonl.gz"))
    log = (chain / "log").read_text()
    assert len(shards) > 1 and f"exit: written is incomplete: time is over and {len(shards) - 1} of" in log
    assert f"1 of {len(shards)} files are there" in log


def test_a_policy_replies_to_no_held_out_people(chain):
    people = [*texts.natural_people(), *texts.known_people(), *texts.train_scenarios()]
    lines = {line for row in rows_of(chain / "sampled.jsonl.gz") for line in row["lines"]}
    assert lines <= {line.text for person in people for line in person.lines}


def test_sampling_counts_the_lines_that_it_replied_to(chain):
    count = len(rows_of(chain / "sampled.jsonl.gz"))
    assert f" replies to {count} of {count} lines" in (chain / "log").read_text()


def test_rated_replies_of_a_policy_have_kinds(chain):
    said, read = rows_of(chain / "sampled.jsonl.gz"), rows_of(chain / "read.jsonl.gz")
    assert len(read) == sum(len(row["replies"]) for row in said) > 0
    assert {row["kind"] for row in read} <= set(texts.KINDS)
    assert all(0 <= row["sense"] <= 1 for row in read)


@pytest.mark.parametrize("name", ["policy", "refined", "judge"])
def test_models_note_their_options(chain, name):
    options = json.loads((chain / name / "made.json").read_text())["options"]
    assert options["written"] == ["written"] and options["out"] == name


def test_other_options_do_not_continue_a_folder(tmp_path):
    writer._same_options(tmp_path / "made.json", {"each": 4, "seed": 0})
    writer._same_options(tmp_path / "made.json", {"each": 4, "seed": 0})
    with pytest.raises(SystemExit, match=r"begun with other options or texts \(each\)"):
        writer._same_options(tmp_path / "made.json", {"each": 5, "seed": 0})


def test_replies_without_their_options_are_not_continued(tmp_path):
    reply_file(tmp_path / "replies-000.jsonl.gz", [])
    with pytest.raises(SystemExit, match=r"has replies but no made\.json"):
        writer._same_options(tmp_path / "made.json", {"each": 4})


@pytest.mark.parametrize("change", ["adapter", "model", "lines"])
def test_another_writer_or_other_lines_do_not_continue_a_folder(tmp_path, monkeypatch, change):
    for name in ("adapter", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
        (tmp_path / name / "tokenizer.json").touch()
    (tmp_path / "adapter" / writer.VERDICT_FILE).touch()
    people = [PERSON]
    monkeypatch.setattr(writer, "known_people", lambda: people)
    monkeypatch.setattr(writer, "natural_people", lambda: people)
    monkeypatch.setattr(writer, "train_scenarios", list)
    monkeypatch.setattr(writer, "kind_weights", lambda _: {m: {"ask": 1.0} for m in ("story", "guarded")})
    monkeypatch.setattr(writer, "load_writer", lambda _: None)
    monkeypatch.setattr(writer, "written_replies", lambda *_: [])
    options = ["--model", tmp_path / "model", "--adapter", tmp_path / "adapter", "--out", tmp_path / "out"]
    write = lambda: writer.main(["write", *map(str, options)])  # noqa: E731
    write()
    write()
    if change == "lines":
        people.append(texts.Person("y", [texts.Line("I kept the bicycle.")], []))
    else:
        (tmp_path / change / "model.safetensors").write_text("other weights")
    with pytest.raises(SystemExit, match=rf"other options or texts \({change}\)"):
        write()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "policy", "--width", "64"], "--width cannot be used with --start"),
        (["--start", "nowhere"], "nowhere is not the folder of a policy"),
        (["--base", "nowhere"], "mapo fetch smollm2"),
        (["--start", "policy", "--whole"], "--start cannot be used with --whole"),
        (["--base", "nowhere", "--whole", "--layers", "4"], "--layers cannot be used with --whole"),
        (["--start", "policy", "--teacher", "nowhere"], "make_policy.py --base DIR --whole"),
        (
            ["--base", "nowhere", "--teacher", "policy", "--vocab", "9"],
            "--vocab cannot be used with --teacher",
        ),
    ],
)
def test_bad_options_of_a_policy_are_named(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    Path("policy").mkdir()
    Path("policy", "tokenizer.json").touch()
    monkeypatch.setattr(sys, "argv", ["make_policy.py", *options, "--out", "out"])
    with pytest.raises(SystemExit):
        make_policy.arguments()
    assert message in capsys.readouterr().err


NOTING = """\
#!{python}
import json, sys
from pathlib import Path

with open("{log}", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
out = Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(exist_ok=True)
for name in ("tokenizer.json", "examples.npz", "verdict.safetensors"):
    (out / name).touch()
"""


def test_the_gpu_script_stops_where_lines_are_unwritten(tmp_path):
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "tokenizer.json").touch()
    unwritten = 'import sys; sys.exit("It is incomplete." if "write" in sys.argv else 0)'
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\nexec {sys.executable} -c '{unwritten}' \"$@\"\n")
    python.chmod(0o755)
    command = ["bash", EMBEDDED / "make_gpu.sh", tmp_path, tmp_path / "out", tmp_path / "qwen"]
    environment = {**os.environ, "PYTHON": str(python)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "It is incomplete." in done.stdout and "policy" not in done.stdout


def run_gpu_script(folder, *qwen):
    """Run make_gpu.sh with an interpreter that notes its commands and makes empty models; return them."""
    log, noting = folder / "log", folder / "noting"
    log.write_text("")
    noting.write_text(NOTING.format(python=sys.executable, log=log))
    noting.chmod(0o755)
    (folder / "smollm2").mkdir(exist_ok=True)
    (folder / "smollm2" / "tokenizer.json").touch()
    command = ["bash", EMBEDDED / "make_gpu.sh", folder / "smollm2", folder / "out", *qwen]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": str(noting)}, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_option_of_the_gpu_script_exists(tmp_path, monkeypatch):
    qwen = tmp_path / "qwen.gguf"
    qwen.touch()
    commands = run_gpu_script(tmp_path, qwen)
    parsed = []
    monkeypatch.setattr(sample_replies, "sample", parsed.append)
    assert commands.pop(0)[:3] == ["-m", "mapo", "fetch"]
    for script, *options in commands:
        monkeypatch.setattr(sys, "argv", [script, *options])
        match Path(script).stem:
            case "writer":
                parsed.append(writer.arguments(options))
            case "sample_replies":
                sample_replies.main()
            case "make_policy":
                parsed.append(make_policy.arguments())
            case "make_judge":
                parsed.append(make_judge.arguments())
    assert len(parsed) == len(commands) == 10


def test_the_gpu_script_makes_nothing_twice(tmp_path):
    qwen = tmp_path / "qwen"
    qwen.mkdir()
    (qwen / "tokenizer.json").touch()
    assert len(run_gpu_script(tmp_path, qwen)) == 10
    [[script, command, *_]] = run_gpu_script(tmp_path, qwen)
    assert (Path(script).name, command) == ("writer.py", "write")  # it continues its folder


def test_the_gpu_script_works_without_a_writer(tmp_path):
    commands = run_gpu_script(tmp_path)
    assert [Path(script).stem for script, *_ in commands] == ["make_policy"] * 3 + ["make_judge"] * 2
    assert not {"--written", "--read"} & {option for _, *options in commands for option in options}
