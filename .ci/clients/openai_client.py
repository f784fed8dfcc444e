"""The `openai` package against a server: python openai_client.py URL MODEL"""

import sys

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]


def main(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [served.id for served in client.models.list()] == [model]

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=16, seed=1, temperature=0.7)
    text, usage = whole.choices[0].message.content, whole.usage
    assert whole.choices[0].finish_reason in ("length", "stop") and usage.completion_tokens <= 16
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    chunks = list(
        client.chat.completions.create(
            model=model, messages=messages, max_tokens=16, seed=1, temperature=0.7, stream=True, stream_options={"include_usage": True}
        )
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == text, (streamed, text)
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    assert chunks[0].choices[0].delta.role == "assistant"

    # The fixture calls nothing by itself; a conversation with a call and its result must go through.
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="auto", max_tokens=16)
    assert first.choices[0].finish_reason in ("length", "stop", "tool_calls")
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "whale"}'}}
    told = messages + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a large animal"},
    ]
    answered = client.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=16)
    assert answered.usage.prompt_tokens > first.usage.prompt_tokens
    pieces = client.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=16, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert streamed == (answered.choices[0].message.content or ""), streamed

    # A call that is asked for is begun; a model that was never taught to call leaves it as text.
    name = TOOLS[0]["function"]["name"]
    for choice in ["required", {"type": "function", "function": {"name": name}}]:
        message = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=8).choices[0].message
        assert message.tool_calls or message.content.startswith("<tool_call>"), message

    scored = client.chat.completions.create(model=model, messages=messages, max_tokens=4, logprobs=True, top_logprobs=3)
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in scored.choices[0].logprobs.content)

    completion = client.completions.create(model=model, prompt="It was the best of", max_tokens=8, logprobs=2, echo=True, stop=["\n\n"])
    assert completion.choices[0].text.startswith("It was the best of")
    assert completion.choices[0].logprobs.token_logprobs[0] is None

    for wrong, kind in [
        ({"n": 3}, openai.BadRequestError),
        ({"tool_choice": "required"}, openai.BadRequestError),
        ({"extra_body": {"unheard_of": 1}}, openai.BadRequestError),
        ({"model": "another"}, openai.NotFoundError),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": messages, "max_tokens": 1, **wrong})
        except kind as error:
            assert error.body["message"], error.body
        else:
            raise AssertionError(f"{wrong} was taken")
    print(f"openai {openai.__version__}: chat, stream, tools, log-probabilities, completions, errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
