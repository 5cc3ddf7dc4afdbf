"""The texts that the real models are measured on."""

from __future__ import annotations

PASSAGE = """\
The lighthouse keeper wrote in his log every evening: the wind, the state of the sea, and how many ships had passed. \
On 14 March 1872 he counted 23 of them, which was unusual, and noted that three flew no flag at all. \
"If they come back," he told his daughter, "we shall need a better lamp." She had already drawn one:

    def brightness(watts, distance):
        return watts / (4 * 3.14159 * distance ** 2)

It would not have worked, but the idea was sound."""

GREEDY = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The three states of matter are",
    "Water boils at a temperature of",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 4, 8, 16,",
    "Ingredients:\n- 2 cups of flour\n- 1 cup of sugar\n-",
    "import numpy as np\n\nx = np.linspace(0, 1, 100)\n",
    "Photosynthesis is the process by which plants",
    "Seven days make a week, and twelve months make",
    "The quick brown fox",
    "In 1969, Neil Armstrong",
    "<html>\n<head>\n<title>",
    "Il était une fois une petite fille qui",
    "The main difference between a virus and a bacterium is that",
    "SELECT name, age FROM users WHERE",
    "My favourite season is autumn, because",
    "To make a cup of tea, first",
    "E = mc^2 means that",
)
