"""Local models as user, director and judge: sessions, forms and answers read out."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from mapo.errors import ContextError, InputError
from mapo.local_model.forms import form_tokens
from mapo.models.chat import Place, ReadRequest, Request, Tool
from mapo.sampling.calls import common_prefix
from mapo.sampling.guides import allowed_tokens
from mapo.types import Message
from support import tiny
from support.sampled import LINES, Recordings, check_against, job, sampler, talk, teacher_forced, together

PLACES = (
    Place("\nC progress:", ("0", "1", "2")),
    Place("\nC regression:", ("0", "1")),
    Place("\nact:", ("a",)),
)
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "level": {"type": "integer", "enum": [0, -1, -2]}},
    "required": ["text", "level"],
    "additionalProperties": False,
}


def transcript(turns, seed=0):
    lines = "\n".join(LINES[(seed + at) % len(LINES)] for at in range(turns))
    return (Message("system", "Judge the reply."), Message("user", f"{lines}\nWhich level?"))


def plain_logprobs(made, messages, places=PLACES):
    """log softmax over the options' logits at each label's last id, in one pass over prompt and form."""
    form = form_tokens(made.template.tokenizer, places)
    prompt = made.template.full_prompt(messages)
    scores = teacher_forced(made.decoder.model, [*prompt, *form.ids])
    return [
        torch.log_softmax(scores[len(prompt) + at, ids], -1)
        for at, ids in zip(form.reads, form.options, strict=True)
    ]


def check_answers(made, messages, answers, places=PLACES):
    for answer, expected in zip(answers, plain_logprobs(made, messages, places), strict=True):
        torch.testing.assert_close(torch.tensor(answer), expected, rtol=1e-4, atol=1e-4)


async def judge_dialogue(role, turns, session, seed=0):
    """Read the levels after every turn, as a judge does; the messages and answers."""
    return [
        (messages, await role.read(ReadRequest(messages, PLACES, session=session)))
        for messages in (transcript(turn, seed) for turn in range(1, turns + 1))
    ]


@pytest.mark.parametrize(
    ("family", "kind"), [("chatml", "llama"), ("llama3", "qwen2"), ("gemma", "gemma2"), ("chatml", "mistral")]
)
@pytest.mark.parametrize("recorded", [False, True])
def test_answers_equal_a_plain_forward_pass(family, kind, recorded):
    """On a CPU prompts are packed into one row, on a GPU they are rows padded on the left."""
    made = sampler(family, kind, slots=3, context=900)
    made.decoder.graphs = Recordings() if recorded else None
    role = made.role("judge")
    for read in together(made, *(lambda _, i=i: judge_dialogue(role, 4, f"d{i}", i) for i in range(3))):
        for messages, answers in read:
            check_answers(made, messages, answers)


def overlapping(slots):
    """Return a sampler that computes reads in two halves, as on a GPU, and what it starts at a time."""
    made = sampler(slots=slots, context=900)
    made.splits_reads = True
    sizes, begin = [], made.decoder.begin_reads
    made.decoder.begin_reads = lambda reads: sizes.append(len(reads)) or begin(reads)
    return made, sizes


@pytest.mark.parametrize("slots", [20, 5])
def test_reads_in_two_halves_give_the_same_answers(slots):
    made, sizes = overlapping(slots)
    role = made.role("judge")
    dialogues = together(made, *(lambda _, i=i: judge_dialogue(role, 3, f"d{i}", i) for i in range(20)))
    for read in dialogues[::7]:
        for messages, answers in read:
            check_answers(made, messages, answers)
    assert sum(sizes) == 60 and max(sizes) <= 10
    if slots == 20:
        assert sizes == [10] * 6


def test_callers_prepare_their_next_reads_while_others_are_computed():
    """The answers of the first half are returned before the end of the second half."""
    made, _ = overlapping(16)
    role, log = made.role("judge"), []
    for name in ("begin_reads", "finish_reads"):
        own = getattr(made.decoder, name)
        setattr(made.decoder, name, lambda x, own=own, name=name: log.append(name) or own(x))

    async def judge(number):
        await role.read(ReadRequest(transcript(1, number), PLACES, session=f"d{number}"))
        log.append("answered")

    together(made, *(lambda _, i=i: judge(i) for i in range(16)))
    first, second = (at for at, entry in enumerate(log) if entry == "finish_reads")
    assert log[:first].count("answered") == 0
    assert log[:second].count("answered") == 8
    assert log.count("answered") == 16


def cancelled_while_held(messages):
    """Read 16 forms in two halves, and cancel the first while its answer is held. Return the sampler, its
    role and the answers."""
    made, _ = overlapping(16)
    role, tasks = made.role("judge"), []
    finish = made.decoder.finish_reads

    def cancelling(started):
        answers = finish(started)
        if not any(task.cancelled() for task in tasks):
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
        return answers

    made.decoder.finish_reads = cancelling

    async def go(_):
        requests = [ReadRequest(messages(i), PLACES, session=f"d{i}") for i in range(16)]
        tasks.extend(asyncio.create_task(role.read(request)) for request in requests)
        return await asyncio.gather(*tasks, return_exceptions=True)

    return made, role, together(made, go)[0]


def test_a_read_cancelled_while_its_answer_is_held_leaves_its_slot():
    made, role, answers = cancelled_while_held(lambda i: transcript(1, i))
    assert isinstance(answers[0], asyncio.CancelledError)
    check_answers(made, transcript(1, 9), answers[9])
    request = ReadRequest(transcript(1, 0), PLACES, session="d0")
    check_answers(made, request.messages, together(made, lambda _: role.read(request))[0])


def test_nothing_is_copied_from_the_slot_of_a_cancelled_read_before_its_new_session_is_computed():
    def messages(i):
        beginning = " ".join(LINES * 2) if i >= 8 else f"Number {i}."  # too short to be waited for
        return (Message("system", beginning), Message("user", f"Which level, {i}?"))

    made, _, answers = cancelled_while_held(messages)
    assert isinstance(answers[0], asyncio.CancelledError)
    for i in range(8, 16):
        check_answers(made, messages(i), answers[i])


def test_a_session_computes_only_what_is_new():
    made = sampler(slots=1, context=900)
    role = made.role("judge")
    together(made, lambda _: judge_dialogue(role, 6, "d"))
    form = form_tokens(made.template.tokenizer, PLACES)
    prompts = [[*made.template.full_prompt(transcript(turn)), *form.ids] for turn in range(1, 7)]
    known = [common_prefix(a, b) for a, b in pairwise(prompts)]
    assert made.stats.reads == 6
    assert made.stats.reused == sum(known) > 200
    assert made.stats.prefilled == sum(map(len, prompts)) - sum(known)


@pytest.mark.parametrize("slots", [1, 2])
def test_policies_and_roles_share_few_slots(slots):
    """Every dialogue needs a policy and three roles, with fewer slots than dialogues: all of them finish,
    and evicted sessions give the same answers as those that were kept."""

    def dialogues(made):
        judge, user = made.role("judge"), made.role("user")

        async def one(i):
            read = []

            async def roles(turn):
                messages = transcript(turn + 1, i)
                read.append(
                    (messages, await judge.read(ReadRequest(messages, PLACES, session=f"d{i}/judge")))
                )
                request = Request(messages, max_tokens=5, session=f"d{i}/user", seed=turn)
                read.append((await user.reply(request)).text)

            replies = await talk(made.policy(job(f"d{i}")), 3, seed=i, max_tokens=6, pause=roles)
            judge.end_session(f"d{i}")
            user.end_session(f"d{i}")
            return replies, read

        return [lambda _, i=i: one(i) for i in range(4)]

    made, roomy = sampler(slots=slots, context=600), sampler(slots=16, context=600)
    crowded = together(made, *dialogues(made))
    expected = together(roomy, *dialogues(roomy))
    for (replies, read), (same_replies, same_read) in zip(crowded, expected, strict=True):
        check_against(made.decoder.model, replies)
        assert [reply.token_ids for reply in replies] == [reply.token_ids for reply in same_replies]
        assert read[1::2] == same_read[1::2]
        for messages, answers in read[::2]:
            check_answers(made, messages, answers)
    assert sorted(made._free) == list(range(slots))
    assert not made._holders and not made._waiting
    assert made.stats.reused < roomy.stats.reused


def test_dialogues_keep_their_slots_while_role_sessions_can_give_theirs():
    made = sampler(slots=2, context=600)
    judge = made.role("judge")

    async def go(s):
        seat = s.policy(job())
        request = Request((Message("user", "Hello there."),), max_tokens=4)
        await seat.reply(request)
        for at in range(3):
            await judge.read(ReadRequest(transcript(1), PLACES, session=f"d{at}"))
        return seat.slot

    assert together(made, go) == [0]


def test_requests_without_a_session_leave_their_slots():
    made = sampler(slots=3)
    role = made.role("judge")

    async def go(_):
        await asyncio.gather(*(role.read(ReadRequest(transcript(at), PLACES)) for at in (1, 2, 3, 4)))
        return len(made._free), len(role._sessions)

    assert together(made, go) == [(3, 0)]


def test_calls_of_one_session_follow_one_another():
    made = sampler(slots=2)
    role = made.role("judge")

    async def go(_):
        reads = (role.read(ReadRequest(transcript(at), PLACES, session="d")) for at in (1, 2))
        return await asyncio.gather(*reads)

    for turn, answers in enumerate(together(made, go)[0], 1):
        check_answers(made, transcript(turn), answers)


def test_ending_a_session_frees_its_slots_and_no_others():
    made = sampler(slots=4)
    role = made.role("judge")

    async def go(_):
        for session in ("case/3/judge", "case/30/judge", "case/3"):
            await role.read(ReadRequest(transcript(1), PLACES, session=session))
        role.end_session("case/3")
        return len(made._free), list(role._sessions)

    assert together(made, go) == [(3, ["case/30/judge"])]


def test_a_session_ended_or_cancelled_during_a_call_leaves_its_slot():
    made = sampler(slots=1, chunk=1)
    role = made.role("user")

    async def go(_):
        request = Request(transcript(1), max_tokens=200, session="d")
        task = asyncio.create_task(role.reply(request))
        while not made._active:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await role.read(ReadRequest(transcript(2), PLACES, session="d"))

    check_answers(made, transcript(2), together(made, go)[0])


def test_new_weights_forget_what_sessions_had():
    made = sampler(slots=2, context=600)
    role = made.role("judge")

    async def go(_):
        await role.read(ReadRequest(transcript(2), PLACES, session="d"))
        with torch.no_grad():
            made.decoder.model.model.embed_tokens.weight *= 1.5
        made.forget_all()
        return await role.read(ReadRequest(transcript(3), PLACES, session="d"))

    check_answers(made, transcript(3), together(made, go)[0])


def test_a_form_is_json_of_its_schema_beside_replies_that_are_not():
    made = sampler(slots=4, context=900)
    role = made.role("director")
    request = Request(transcript(2), temperature=1.0, max_tokens=200, schema=SCHEMA, session="d/director")
    answer, replies = together(made, lambda _: role.reply(request), lambda s: talk(s.policy(job()), 3))
    form = json.loads(answer.text)
    assert list(form) == ["text", "level"] and form["level"] in (0, -1, -2)
    assert answer.reply.finish == "stop"
    assert answer.usage.completion > 5
    alone = together(sampler(slots=4, context=900), lambda s: talk(s.policy(job()), 3))[0]
    assert [r.token_ids for r in replies] == [r.token_ids for r in alone]
    assert [r.logprobs for r in replies] == [r.logprobs for r in alone]


@pytest.mark.parametrize("recorded", [False, True])
def test_forms_take_the_likeliest_tokens_that_are_allowed(recorded):
    """At temperature 0 each token that is not forced is the likeliest of those that the guide allows."""
    made = sampler(slots=3, context=900, chunk=3)
    made.decoder.graphs = Recordings() if recorded else None
    role, calls = made.role("judge"), []
    own = made.ask
    made.ask = lambda call: calls.append(call) or own(call)
    limit = made.guides.needed(SCHEMA) + 40
    requests = [
        Request(transcript(turn), temperature=0.0, max_tokens=limit, schema=SCHEMA, session=f"d{i}")
        for turn in (1, 2)
        for i in range(3)
    ]
    together(made, *(lambda _, r=r: role.reply(r) for r in requests))
    assert len(calls) == 6
    for call in calls:
        scores = teacher_forced(made.decoder.model, [*call.ids, *call.token_ids])
        guide, at = made.guides.guide(SCHEMA, limit), len(call.ids)
        forced = guide.force()
        while True:
            assert call.token_ids[at - len(call.ids) :][: len(forced)] == forced
            at += len(forced)
            if guide.ended:
                break
            words = allowed_tokens([guide])[0].view(np.uint8)
            allowed = np.unpackbits(words, bitorder="little")[: scores.shape[1]]
            expected = scores[at - 1].masked_fill(torch.tensor(allowed == 0), float("-inf"))
            token, logprob = call.token_ids[at - len(call.ids)], call.logprobs[at - len(call.ids)]
            assert token == expected.argmax()
            assert abs(logprob - torch.log_softmax(expected, -1)[token]) < 1e-4
            guide.consume(token)
            at += 1
            forced = [] if guide.ended else guide.force()
        assert at == len(call.ids) + len(call.token_ids)


@pytest.mark.parametrize("limit", [0, 40])
def test_a_form_leaves_a_cache_that_can_be_relied_on(limit):
    """A form that is forced completely was never fed to the model, and neither was its prompt."""
    made = sampler(slots=1, context=900)
    role = made.role("judge")
    most = made.guides.needed(SCHEMA) + limit

    async def go(_):
        await role.read(ReadRequest(transcript(1), PLACES, session="d"))
        form = await role.reply(Request(transcript(3), schema=SCHEMA, max_tokens=most, session="d"))
        messages = (*transcript(3), Message("assistant", form.text), Message("user", "Sure?"))
        return messages, await role.read(ReadRequest(messages, PLACES, session="d"))

    ((messages, answers),) = together(made, go)
    check_answers(made, messages, answers)


def test_a_role_continues_after_its_own_reply():
    """A user's next prompt holds its own line: only what comes after it is new."""
    made = sampler(slots=1, context=600)
    role = made.role("user")

    async def go(_):
        messages = transcript(1)
        first = await role.reply(Request(messages, max_tokens=8, session="u"))
        messages = (*messages, Message("assistant", "x"), Message("user", "And then?"))
        second = await role.reply(Request(messages, max_tokens=8, session="u"))
        return first.usage, second.usage

    ((first, second),) = together(made, go)
    assert first.cached == 0
    assert second.cached >= first.prompt - 1


@pytest.mark.parametrize(
    ("request_", "error", "problem"),
    [
        (Request(transcript(1), tools=(Tool("t", "", {}),)), InputError, "supports no tools"),
        (Request(transcript(1), max_tokens=20, schema=SCHEMA), InputError, "but max_tokens is 20"),
        (Request(transcript(40), max_tokens=100), ContextError, "do not fit into a context of 300"),
        (Request(transcript(40), schema=SCHEMA), ContextError, "do not fit into a context of 300"),
        (ReadRequest(transcript(40), PLACES), ContextError, "do not fit into a context of 300"),
        (ReadRequest(transcript(1), (Place("x", ("nobody",)),)), InputError, "cannot be read out"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_the_sampler_goes_on(request_, error, problem):
    made = sampler(slots=1, context=300)
    role = made.role("judge")

    async def go(_):
        ask = role.read if isinstance(request_, ReadRequest) else role.reply
        with pytest.raises(error, match=problem):
            await ask(request_)
        return await role.read(ReadRequest(transcript(1), PLACES, session="d"))

    check_answers(made, transcript(1), together(made, go)[0])


def test_a_long_limit_is_lowered_to_what_fits():
    made = sampler(slots=1, context=300)
    answer = together(made, lambda s: s.role("user").reply(Request(transcript(1), max_tokens=5000)))[0]
    assert answer.usage.prompt + answer.usage.completion <= 300


def test_weights_that_are_no_numbers_are_an_error():
    model = tiny.model()
    made = sampler(model=model)
    with torch.no_grad():
        model.model.norm.weight[:] = float("nan")
    with pytest.raises(Exception, match="not numbers"):
        together(made, lambda s: s.role("judge").read(ReadRequest(transcript(1), PLACES)))


CARD = tuple(
    Message("system", f"Judge the reply to person {n}. " + "I am tired, nobody listens. " * 40)
    for n in (1, 2)
)


def sibling(number, turn):
    """The messages of a judge; even and odd dialogues have the same scenario."""
    return (CARD[number % 2], Message("user", f"{LINES[number % 5]} {' '.join(LINES[:turn])}"))


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("slots", [3, 24])
def test_siblings_share_the_beginning_of_their_prompts(slots, splits):
    made = sampler(slots=slots, context=900)
    made.splits_reads = splits
    role = made.role("judge")

    async def go(i):
        read = []
        for turn in range(1, 4):
            request = ReadRequest(sibling(i, turn), PLACES, session=f"d{i}")
            read.append((request.messages, await role.read(request)))
        return read

    for read in together(made, *(lambda _, i=i: go(i) for i in range(20))):
        for messages, answers in read:
            check_answers(made, messages, answers)
    shared = len(made.template.full_prompt(CARD[:1]))
    assert shared > 300
    if slots > 20:  # two of the twenty computed it
        assert made.stats.prefilled < 3 * shared + 20 * 3 * 90


def test_replies_after_a_shared_beginning_are_those_without():
    def talks(made, alike):
        role = made.role("user")

        async def go(i):
            name = f"d{i}" if alike else ""
            request = Request(sibling(i, 1), max_tokens=8, session=name, seed=i)
            return (await role.reply(request)).text

        return together(made, *(lambda _, i=i: go(i) for i in range(6)))

    sharing, alone = sampler(slots=8, context=900), sampler(slots=8, context=900)
    assert talks(sharing, True) == talks(alone, False)
    assert sharing.stats.reused > 1000
    assert alone.stats.reused == 0


def test_beginnings_are_not_taken_from_sessions_of_old_weights():
    made = sampler(slots=4, context=900)
    role = made.role("judge")

    async def go(_):
        await role.read(ReadRequest(sibling(0, 1), PLACES, session="d0"))
        with torch.no_grad():
            made.decoder.model.model.embed_tokens.weight *= 1.5
        made.forget_all()
        return await role.read(ReadRequest(sibling(2, 1), PLACES, session="d2"))

    check_answers(made, sibling(2, 1), together(made, go)[0])


def test_a_session_that_takes_the_slot_of_a_sibling_keeps_the_beginning():
    made = sampler(slots=1, context=900)
    role = made.role("judge")

    async def go(_):
        await role.read(ReadRequest(sibling(0, 1), PLACES, session="d0"))
        return await role.read(ReadRequest(sibling(2, 1), PLACES, session="d2"))

    check_answers(made, sibling(2, 1), together(made, go)[0])
    assert made.stats.reused > 300
