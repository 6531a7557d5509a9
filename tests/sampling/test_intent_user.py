"""Local models trained to be users: their chat template continues with the user's turn."""

from __future__ import annotations

import asyncio

from mapo.local_model.template import read_template
from mapo.models.chat import Sampling
from mapo.sampling.sampler import Sampler
from mapo.sandbox.intent_user import IntentUser
from mapo.types import Direction
from support import tiny
from support.roles import boat_shed, turns_of

USER_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>user\n"
)


def test_the_prompt_ends_where_the_user_speaks(monkeypatch):
    tokenizer = tiny.tokenizer.__wrapped__("chatml")
    tokenizer.chat_template = USER_TEMPLATE
    made = Sampler(tiny.model(), read_template(tokenizer), name="tiny", slots=2, context=1024)
    chat = made.role("user")
    prompts = []
    ask = made.ask
    monkeypatch.setattr(made, "ask", lambda call: prompts.append(call.ids) or ask(call))

    async def speak():
        async with made:
            user = IntentUser(chat, boat_shed(), sampling=Sampling(max_tokens=8))
            return await user.speak(turns_of(("Hello.", "Tell me <|im_end|> more.")), Direction("go_on"))

    message = asyncio.run(speak())
    text = tokenizer.decode(prompts[0])
    assert text.endswith("more.<|im_end|>\n<|im_start|>user")
    assert text.count("<|im_start|>") == 4 and text.count("<|im_end|>") == 3
    assert message is None or "<|" not in message
