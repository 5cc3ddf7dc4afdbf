"""A chat: type a line, read the answer as it comes, end with Ctrl-D.

    python examples/chat.py [MODEL] [--max-tokens N]
"""

from __future__ import annotations

import argparse

from pyggml.engine import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat with a model.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file, smollm2 or gemma3")
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    messages: list[dict[str, str]] = []
    with LLM(args.model, ctx=4096, parallel=1) as llm:
        print(llm.plan)
        while text := ask():
            messages.append({"role": "user", "content": text})
            stream = llm.chat(messages, stream=True, max_tokens=args.max_tokens)
            for delta in stream:
                print(delta.text, end="", flush=True)
            (answer,) = stream.completions
            messages.append({"role": "assistant", "content": answer.text})
            stats = answer.stats
            print(f"\n[{stats.n_prompt} prompt tokens, {stats.n_cached} of them cached; {stats.n_generated} generated]")


def ask() -> str:
    try:
        return input("> ")
    except EOFError:
        return ""


if __name__ == "__main__":
    main()
