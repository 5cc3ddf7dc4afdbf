"""Several prompts answered as one batch, then endings compared by the probability that the model gives them.

    python examples/batch.py [MODEL] [--max-tokens N]
"""

from __future__ import annotations

import argparse

from pyggml.engine import LLM

PROMPTS = ["The capital of France is", "Water boils at a temperature of", "Once upon a time there was"]
ENDINGS = [" Paris.", " London.", " a fish."]


def main() -> None:
    parser = argparse.ArgumentParser(description="A batch of prompts, and scores of endings.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file, smollm2 or gemma3")
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    with LLM(args.model, ctx=1024, parallel=len(PROMPTS)) as llm:
        answers = llm.generate(PROMPTS, temperature=0, max_tokens=args.max_tokens)
        for prompt, answer in zip(PROMPTS, answers):
            print(f"{prompt}|{answer}")
        for ending in ENDINGS:
            print(f"{score(llm, PROMPTS[0], ending):8.2f} {PROMPTS[0]}{ending}")


def score(llm: LLM, prompt: str, ending: str) -> float:
    """The log-probability of the ending's tokens after the prompt."""
    start = llm.tokenize(prompt)
    end = llm.tokenize(ending, add_special=False)
    return float(llm.score(start + end)[-len(end) :].sum())


if __name__ == "__main__":
    main()
