import pytest

from mapo.errors import InputError
from mapo.local_model import template_cost
from mapo.local_model.template_cost import _is_plain, check_template_cost

CHATML = (
    "{% for message in messages %}{% if loop.index0 % 2 == 0 %}{{ '<|im_start|>' + message['role'] }}"
    "{% endif %}{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
THINKING = (
    "{%- set ns = namespace(last=messages|length - 1, found=false) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.found %}{% break %}{% endif %}{%- set ns.last = ns.last - 1 %}{%- endfor %}"
    "{%- for m in messages %}{% generation %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{% endgeneration %}{%- endfor %}"
)
COUNTING = "{% for i in range(3) %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [CHATML, THINKING])
def test_usual_templates_are_accepted_without_a_trial(template, monkeypatch):
    assert _is_plain(template)
    monkeypatch.setattr(
        template_cost.subprocess, "run", lambda *_, **__: pytest.fail("a process was started")
    )
    check_template_cost(template, "usual")


HARMFUL = {
    "nested loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "long string": "{{ 'x' * 3000000000 }}",
    "padded string": "{{ 'x' | center(3000000000) }}",
    "format width": "{{ '%03000000000d' % 1 }}",
    "doubling": (
        "{% set ns = namespace(x='xx') %}{% for a in messages %}{% for b in [1, 2] %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endfor %}{{ ns.x }}"
    ),
    "taking turns": (
        "{% set ns = namespace(a='x', b='x') %}{% for m in messages %}{% set ns.a = ns.b ~ ns.b %}"
        "{% set ns.b = ns.a ~ ns.a %}{% endfor %}"
    ),
    "through another": "{% set ns = namespace(a='x') %}{% for m in messages %}{% set b = ns.a %}"
    "{% set ns.a = b ~ b %}{% endfor %}",
    "straight lines": "{% set a0 = 'x' %}"
    + "".join(f"{{% set a{n + 1} = a{n} ~ a{n} %}}" for n in range(60)),
    "block": "{% set a = 'x' %}{% for m in messages %}{% set a %}{{ a }}{{ a }}{% endset %}{% endfor %}",
    "appending": "{% set x = 'a' %}{% for m in messages %}{% set x = [x, x] | join(x) %}{% endfor %}",
    "three loops": "{% for a in m %}{% for b in m %}{% for c in m %}{% endfor %}{% endfor %}{% endfor %}",
    "macro": "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_templates_that_can_grow_are_tried_first(name):
    assert not _is_plain(HARMFUL[name])


@pytest.mark.parametrize("name", ["nested loops", "long string", "doubling"])
def test_templates_that_take_too_much_are_refused(name, monkeypatch):
    monkeypatch.setattr(template_cost, "SECONDS", 1)
    with pytest.raises(InputError, match="chat template takes more than"):
        check_template_cost(HARMFUL[name], f"harmful/{name}")


def test_an_unusual_template_that_is_cheap_is_accepted():
    assert not _is_plain(COUNTING)
    check_template_cost(COUNTING, "unusual")


def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('executed', 'w')\nraise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    check_template_cost(COUNTING + "{# here #}", "here")
    assert not (tmp_path / "executed").exists()


def test_a_process_that_cannot_start_is_not_blamed_on_the_template(monkeypatch):
    monkeypatch.setattr(template_cost, "_RENDER", "import no_such_module")
    with pytest.raises(InputError, match="could not be tried .*no_such_module"):
        check_template_cost(COUNTING + "{# broken #}", "broken")
