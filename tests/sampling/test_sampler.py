"""The sampler against the model itself: what it says it drew is what a plain forward pass gives."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from mapo import Rubric
from mapo.errors import ContextError, InputError, TrainError
from mapo.models.chat import Request
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.rollout import Rules, play_all
from mapo.types import Message, StopReason
from support import tiny
from support.sampled import (
    LINES,
    SCENARIOS,
    check_against,
    job,
    row_of,
    sampler,
    talk,
    teacher_forced,
    together,
)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("chatml", "llama"),
        ("llama3", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma", "gemma2"),
        ("gemma", "gemma3"),
        ("chatml", "mistral"),
    ],
)
def test_logprobs_equal_a_plain_forward_pass_after_many_turns_joins_and_leaves(family, kind):
    made = sampler(family, kind, slots=3, context=900, chunk=5)
    turns = [6, 2, 5, 1, 4, 3]
    found = together(
        made,
        *(
            lambda s, n=n, i=i: talk(s.policy(job(str(i))), n, seed=i, max_tokens=6 + 5 * i)
            for i, n in enumerate(turns)
        ),
    )
    assert [len(replies) for replies in found] == turns
    for replies in found:
        check_against(made.decoder.model, replies)
    if made.template.append_only:  # the cache was kept: no id went through the model twice
        assert made.stats.prefilled + made.stats.reused == sum(
            start for replies in found for start, _ in row_of(replies)[1]
        )
        asked = sum(len(r.prompt_ids) + 1 for replies in found for r in replies) - len(found)
        assert made.stats.prefilled == asked


def test_ids_spell_the_dialogue():
    made = sampler()
    (replies,) = together(made, lambda s: talk(s.policy(job()), 4, max_tokens=8))
    ids, _ = row_of(replies)
    tokenizer = made.template.tokenizer
    text = "<|im_start|>system\nBe kind.<|im_end|>\n"
    for line, reply in zip(LINES, replies, strict=False):
        spoken = reply.token_ids[:-1] if reply.finish == "stop" else reply.token_ids
        text += f"<|im_start|>user\n{line}<|im_end|>\n"
        text += f"<|im_start|>assistant\n{tokenizer.decode(spoken)}<|im_end|>\n"
    assert tokenizer.decode(ids) == text.removesuffix(
        "\n" if replies[-1].finish == "stop" else "<|im_end|>\n"
    )


def test_a_template_that_rewrites_gives_whole_prompts_and_keeps_the_common_part():
    made = sampler("qwen3", "qwen3")
    (replies,) = together(made, lambda s: talk(s.policy(job()), 3))
    assert all(reply.whole_prompt for reply in replies)
    first, second = (list(reply.prompt_ids) for reply in replies[:2])
    shared = next(k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert made.stats.reused >= shared > 10


def test_a_dialogue_is_the_same_whoever_else_is_in_the_batch():
    alone = together(sampler(slots=1), lambda s: talk(s.policy(job()), 4, seed=7))[0]
    others = [
        lambda s, i=i: talk(s.policy(job(str(i))), 1 + i % 4, seed=i, max_tokens=5 + i) for i in range(6)
    ]
    for slots in (2, 7):
        crowd = together(sampler(slots=slots), *others, lambda s: talk(s.policy(job()), 4, seed=7))[-1]
        assert [r.token_ids for r in crowd] == [r.token_ids for r in alone]
        assert [r.text for r in crowd] == [r.text for r in alone]


def played(seed=0, slots=4):
    made = sampler(slots=slots, context=2048)
    rules = Rules(Rubric.load("empathy"), min_turns=3, max_turns=4, max_tokens=10)
    jobs = [Job(SCENARIOS[i % 2], f"d{i}", seed=seed + i) for i in range(6)]

    async def go():
        async with made:
            return await play_all(jobs, made.policy, scripted_cast("empathy"), rules, concurrency=6)

    return made, asyncio.run(go())


def test_the_scripted_world_plays_with_it_and_a_run_repeats_bit_for_bit():
    made, dialogues = played()
    assert all(d.error is None and len(d.turns) >= 3 for d in dialogues)
    for dialogue in dialogues:
        check_against(made.decoder.model, [turn.reply for turn in dialogue.turns])
    again = played()[1]
    other = played(seed=100)[1]
    assert [t.reply for d in dialogues for t in d.turns] == [t.reply for d in again for t in d.turns]
    assert [t.reply for d in dialogues for t in d.turns] != [t.reply for d in other for t in d.turns]


def test_requests_on_their_way_are_waited_for():
    """Roles of plain code may take a few passes of the event loop: the batch does not depend on how many."""
    made = sampler(slots=4)
    rounds, own = [], made.decoder.round
    made.decoder.round = lambda fresh, going: rounds.append(len(fresh)) or own(fresh, going)

    async def late(s, passes):
        for _ in range(passes):
            await asyncio.sleep(0)
        return await talk(s.policy(job(str(passes))), 1)

    together(made, *(lambda s, i=i: late(s, i) for i in range(4)))
    assert rounds[0] == 4


def test_length_and_end_marks_are_told_apart():
    model = tiny.model()
    mark = tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")
    with torch.no_grad():  # an end mark that is drawn now and then: its logit grows with the embedding's
        model.lm_head.weight[mark] *= 3
    made = sampler(model=model, slots=8, context=1024)
    found = together(
        made, *(lambda s, i=i: talk(s.policy(job(str(i))), 4, seed=i, max_tokens=3) for i in range(8))
    )
    replies = [reply for dialogue in found for reply in dialogue]
    assert {reply.finish for reply in replies} == {"stop", "length"}
    for dialogue in found:
        check_against(model, dialogue)
        for turn, reply in enumerate(dialogue):
            assert (reply.token_ids[-1] in made.end_ids) == (reply.finish == "stop")
            assert not set(reply.token_ids[:-1]) & made.end_ids
            assert reply.finish == "stop" or len(reply.token_ids) == 3 + turn % 3
            if turn:  # the mark is in the row once: sampled, or put there before the user's turn
                cut = dialogue[turn - 1].finish == "length"
                assert (reply.prompt_ids[0] == mark) == cut


def test_temperature_top_p_and_greedy():
    made = sampler(slots=3)
    hot, cold, narrow = together(
        made,
        lambda s: talk(s.policy(job("a")), 2, temperature=0.5),
        lambda s: talk(s.policy(job("b")), 2, temperature=0.0),
        lambda s: talk(s.policy(job("c")), 2, top_p=1e-6),
    )
    check_against(made.decoder.model, hot, temperature=0.5)
    check_against(made.decoder.model, cold)
    ids, places = row_of(cold)
    scores = teacher_forced(made.decoder.model, ids)
    for start, reply in places:
        best = scores[start - 1 : start - 1 + len(reply.token_ids)].argmax(-1)
        assert best.tolist() == list(reply.token_ids)
    # The likeliest id alone is left: drawn for sure.
    assert all(value == 0 for reply in narrow for value in reply.logprobs)


def test_a_full_context_ends_that_dialogue_alone():
    made = sampler(context=160, slots=2)

    async def until_full(s):
        seat = s.policy(job("long"))
        with pytest.raises(ContextError, match="do not fit into a context of 160"):
            await talk(seat, 50)
        seat.end_dialogue()
        return "full"

    found = together(made, until_full, lambda s: talk(s.policy(job("short")), 2))
    assert found[0] == "full" and len(found[1]) == 2
    assert len(made._free) == 2
    rules = Rules(Rubric.load("empathy"), max_tokens=30)

    async def go():
        async with made:
            return await play_all([job()], made.policy, scripted_cast("empathy"), rules)

    (dialogue,) = asyncio.run(go())
    assert dialogue.ending.reason == StopReason.LENGTH or not dialogue.turns


def test_others_go_on_while_one_waits_for_its_judge():
    made = sampler(slots=3)
    verdict = asyncio.Event()

    async def slow(s):
        async def judge(turn):
            if turn == 0:
                await verdict.wait()

        return await talk(s.policy(job("slow")), 2, pause=judge)

    async def quick(s):
        replies = await talk(s.policy(job("quick")), 3, seed=1)
        verdict.set()  # never reached if the batch waited for the slow one
        return replies

    found = together(made, slow, quick)
    assert [len(replies) for replies in found] == [2, 3]
    for replies in found:
        check_against(made.decoder.model, replies)


def test_an_error_in_the_loop_reaches_all_calls_and_is_raised_at_the_end():
    made = sampler(slots=1)

    def broken(*_):
        raise RuntimeError("out of memory")

    made.decoder.round = broken

    async def go():
        async with made:
            seats = [made.policy(job(str(i))) for i in range(3)]
            found = await asyncio.gather(*(talk(seat, 1) for seat in seats), return_exceptions=True)
            found.append((await asyncio.gather(talk(made.policy(job("late")), 1), return_exceptions=True))[0])
            told.extend(found)

    told = []
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(go())
    assert len(told) == 4 and all(isinstance(e, TrainError) and "out of memory" in str(e) for e in told)


def test_weights_that_are_no_numbers_are_told():
    model = tiny.model()
    made = sampler(model=model)
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)

    async def go():
        async with made:
            with pytest.raises(TrainError, match="not numbers"):
                await talk(made.policy(job()), 1)

    with pytest.raises(TrainError, match="not numbers"):
        asyncio.run(go())


def test_closing_in_mid_flight_frees_the_slot():
    made = sampler(slots=1, context=1024, chunk=1)

    async def go():
        async with made:
            long = asyncio.create_task(talk(made.policy(job("long")), 1, max_tokens=800))
            waiting = asyncio.create_task(talk(made.policy(job("waiting")), 1, seed=3))
            gone = asyncio.create_task(talk(made.policy(job("gone")), 1))
            while not made.stats.sampled and not made.failed:
                await asyncio.sleep(0)
            gone.cancel()
            long.cancel()
            replies = await waiting
            assert long.cancelled() or isinstance(
                (await asyncio.gather(long, return_exceptions=True))[0], asyncio.CancelledError
            )
            return replies

    replies = asyncio.run(go())
    check_against(made.decoder.model, replies)
    assert made._free == [0] and not made._active and not made._waiting


def test_new_weights_drop_every_cache_but_not_the_dialogue():
    model = tiny.model()
    made = sampler(model=model)

    async def go():
        async with made:
            seat = made.policy(job())

            async def learn(turn):
                if turn == 1:
                    with torch.no_grad():
                        model.model.layers[0].self_attn.k_proj.weight.mul_(-1)
                    made.forget_all()

            return await talk(seat, 3, pause=learn)

    replies = asyncio.run(go())
    ids, places = row_of(replies)
    start, last = places[-1]
    expected = teacher_forced(model, ids)[range(start - 1, len(ids) - 1), list(last.token_ids)]
    assert torch.tensor(last.logprobs).sub(expected).abs().max() < 1e-4


def test_another_conversation_on_the_same_seat_starts_a_new_row():
    made = sampler()

    async def go(s):
        seat = s.policy(job())
        first = await seat.reply(Request((Message("user", "Hello there."),), max_tokens=5, seed=1))
        other = await seat.reply(Request((Message("user", "It rains."),), max_tokens=5, seed=2))
        return [first.reply, other.reply]

    (replies,) = together(made, go)
    assert [reply.whole_prompt for reply in replies] == [False, True]
    check_against(made.decoder.model, replies)


def test_requests_a_local_model_cannot_serve_are_refused():
    made = sampler()
    request = Request((Message("user", "Hello there."),), schema={"type": "object"})
    with pytest.raises(InputError, match="schema"):
        asyncio.run(made.policy(job()).reply(request))
    with pytest.raises(InputError, match="not running"):
        asyncio.run(made.policy(job()).reply(Request((Message("user", "Hello there."),), max_tokens=4)))


def test_weights_must_not_change_under_a_reply():
    made = sampler(context=1024, chunk=1)

    async def go(s):
        talking = asyncio.create_task(talk(s.policy(job()), 1, max_tokens=800))
        while not s.stats.sampled and not s.failed:
            await asyncio.sleep(0)
        with pytest.raises(TrainError, match="weights were changed"):
            s.forget_all()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        s.forget_all()

    together(made, go)
    assert made.epoch == 1
