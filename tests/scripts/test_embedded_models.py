"""Making the embedded policy, the judges and their teachers, with tiny models."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "scripts" / "embedded"
sys.path.insert(0, str(EMBEDDED))
import make_judge  # noqa: E402
import make_policy  # noqa: E402

CHAIN = """
import sys
import texts

everybody = texts.written_people()
chosen = [p for p in everybody if any(line.replies for line in p.lines)][:90]
texts.written_people = lambda: chosen  # fewer people: reading and naming all replies takes a minute

import torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM
import corpus, make_judge, make_policy

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

for line in Path(sys.argv[1]).read_text().splitlines():
    module, *options = line.split()
    print(f"== {line}", flush=True)
    sys.argv = [module, *options]
    globals()[module].main()
"""
TINY = "--dialogues 40 --batch 2048 --tokens 4000 --device cpu"
SHAPED = f"{TINY} --width 64 --layers 1"
COMMANDS = f"""\
make_policy --base smollm2 --whole --out teacher --vocab 1000 {TINY}
make_policy --base smollm2 --teacher teacher --out policy {SHAPED} --all-until 0
make_policy --start policy --out refined {TINY}
make_judge --policy policy --base smollm2 --whole --out judge_teacher {TINY} --part even
make_policy --start policy --reachable 0.4 --natural 1 --all-until 0 --out reachable {TINY}
make_judge --policy policy --start --teacher judge_teacher --out judge {SHAPED} --part even
make_judge --policy policy --judge judge --out judge_further {SHAPED} --part odd
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
    return folder


def made_of(folder):
    return json.loads((folder / "made.json").read_text())


@pytest.mark.parametrize(("teacher", "student"), [("teacher", "policy"), ("judge_teacher", "judge")])
def test_a_teacher_has_all_layers_of_the_base_and_the_tokens_of_its_student(chain, teacher, student):
    whole, small = (json.loads((chain / name / "config.json").read_text()) for name in (teacher, student))
    assert (whole["num_hidden_layers"], whole["hidden_size"]) == (2, 64) and small["num_hidden_layers"] == 1
    assert whole["vocab_size"] == small["vocab_size"] <= 1000 and whole["eos_token_id"] == 1
    tokenizers = [(chain / name / "tokenizer.json").read_text() for name in (teacher, student)]
    assert tokenizers[0] == tokenizers[1]
    assert "teacher" in made_of(chain / student) and "teacher" not in made_of(chain / teacher)


@pytest.mark.parametrize("name", ["policy", "refined", "reachable", "judge", "judge_further"])
def test_models_note_their_options(chain, name):
    assert made_of(chain / name)["options"]["out"] == name


def test_a_judge_measures_its_agreement(chain):
    held_out = made_of(chain / "judge")["held_out"]
    assert {"written", "with a policy's replies"} == held_out.keys()
    assert (chain / "judge" / "mapo_role.json").exists()


def folder_of_model(name):
    Path(name).mkdir()
    Path(name, "tokenizer.json").touch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "policy", "--width", "64"], "--width cannot be used with --start"),
        (["--start", "nowhere"], "nowhere is not the folder of a policy"),
        (["--start", "policy", "--reachable", "0.5"], "it needs --natural"),
        (
            ["--start", "policy", "--reachable", "1.5", "--natural", "1"],
            "is a probability, not 1.5",
        ),
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
    folder_of_model("policy")
    monkeypatch.setattr(sys, "argv", ["make_policy.py", *options, "--out", "out"])
    with pytest.raises(SystemExit):
        make_policy.arguments()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "--whole"], "--whole needs --base"),
        (["--start", "--teacher", "nowhere"], "nowhere is not the folder of a model"),
    ],
)
def test_bad_options_of_a_judge_are_named(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    folder_of_model("policy")
    monkeypatch.setattr(sys, "argv", ["make_judge.py", "--policy", "policy", *options, "--out", "out"])
    with pytest.raises(SystemExit):
        make_judge.arguments()
    assert message in capsys.readouterr().err


NOTING = """\
#!{python}
import json, sys
from pathlib import Path

with open("{log}", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
out = Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(exist_ok=True)
(out / "tokenizer.json").touch()
"""


def run_gpu_script(folder):
    """Run make_gpu.sh with an interpreter that notes its commands and makes empty models; return them."""
    log, noting = folder / "log", folder / "noting"
    log.write_text("")
    noting.write_text(NOTING.format(python=sys.executable, log=log))
    noting.chmod(0o755)
    (folder / "smollm2").mkdir(exist_ok=True)
    (folder / "smollm2" / "tokenizer.json").touch()
    command = ["bash", EMBEDDED / "make_gpu.sh", folder / "smollm2", folder / "out"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": str(noting)}, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_option_of_the_gpu_script_exists(tmp_path, monkeypatch):
    commands = run_gpu_script(tmp_path)
    for script, *options in commands:
        monkeypatch.setattr(sys, "argv", [script, *options])
        importlib.import_module(Path(script).stem).arguments()
    assert len(commands) == 6


def test_the_gpu_script_makes_nothing_twice(tmp_path):
    assert len(run_gpu_script(tmp_path)) == 6
    assert not run_gpu_script(tmp_path)
