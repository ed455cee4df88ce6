# ruff: noqa: RUF001 - other alphabets are the point
"""Prompts of every shape that the engine treats in its own way, as token ids of a given model."""

from common.text.load import TextModel

LONGEST_TOKENS = 530  # more than one chunk of 512

_SYSTEM = {"role": "system", "content": "You are a terse assistant. Answer in one sentence."}
_CHATS: dict[str, list[dict[str, str]]] = {
    "chat with system": [_SYSTEM, {"role": "user", "content": "Why is the sky blue?"}],
    "chat, same system": [_SYSTEM, {"role": "user", "content": "Why do leaves turn red?"}],
    "chat without system": [{"role": "user", "content": "Give me three names for a cat."}],
    "chat, second turn": [
        _SYSTEM,
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": "And how many people live there?"},
    ],
}
_TEXTS = {
    "plain": "The history of the printing press begins",
    "question": "Question: How far is the Moon from the Earth?\nAnswer:",
    "digits": "3.14159265358979323846264338327950288419716939937510",
    "arithmetic": "12 + 35 = 47\n48 + 27 = 75\n1024 + 976 =",
    "spaces": "   \n\n\t  \n",
    "repetition": "buffalo buffalo buffalo buffalo buffalo buffalo buffalo buffalo",
    "Chinese": "北京是中华人民共和国的首都，",
    "Japanese": "吾輩は猫である。名前はまだ無い。",
    "Korean": "안녕하세요, 오늘 날씨가",
    "Russian": "Все счастливые семьи похожи друг на друга,",
    "Greek": "Η Αθήνα είναι η πρωτεύουσα",
    "Arabic": "القاهرة هي عاصمة",
    "Hindi": "भारत की राजधानी",
    "Thai": "กรุงเทพมหานครเป็น",
    "emoji": "🙂🙃 🚀🚀 👩‍👩‍👧 →",
    "Python": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n",
    "C": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "JavaScript": "const sum = (xs) => xs.reduce((a, b) => a + b, 0);\nfunction",
    "SQL": "SELECT name, COUNT(*) FROM orders JOIN customers ON",
    "HTML": "<html>\n<head>\n<title>My page</title>\n</head>\n<body>\n<h1>",
    "JSON": '{"users": [{"id": 1, "name": "Ada"}, {"id": 2, "name":',
    "LaTeX": "\\begin{equation}\n\\int_0^1 x^2 \\, dx = \\frac{1}{3}",
}
_LENGTHS = (15, 16, 17, 31, 32, 33, 48, 100, 130)  # around one page and two; chunks of 16


def prompts(model: TextModel) -> dict[str, tuple[int, ...]]:
    """Name -> ids, none longer than LONGEST_TOKENS; the longest comes first."""
    assert model.template is not None
    encode = model.tokenizer.encode
    story = _story(model)
    made = {f"{LONGEST_TOKENS} tokens": story[:LONGEST_TOKENS]}
    made |= {f"{n} tokens": story[n : 2 * n] for n in _LENGTHS}
    made |= {"one token": [story[0]], "beginning of text": [1], "end of text": [2]}
    made |= {
        name: encode(model.template.render(chat), add_special_tokens=False)
        for name, chat in _CHATS.items()
    }
    made |= {name: encode(text, add_special_tokens=True) for name, text in _TEXTS.items()}
    made["no text at all"] = [(7 * n * n + 11) % 40_000 + 100 for n in range(40)]
    return {name: tuple(ids) for name, ids in made.items()}


def _story(model: TextModel) -> list[int]:
    days = (
        f"On day {n} we walked {3 * n + 7} miles and met a {what}, who told us about the {where}.\n"
        for n, (what, where) in enumerate(
            (what, where)
            for where in ("river", "old tower", "market", "war", "winter of 1709", "sea", "king")
            for what in ("farmer", "sailor", "nun", "merchant", "piper", "soldier", "child")
        )
    )
    return model.tokenizer.encode("".join(days), add_special_tokens=False)
