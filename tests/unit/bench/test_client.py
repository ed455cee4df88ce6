"""What is told of an answer that is none."""

import pytest

from bench.client import said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"error": {"message": "too long", "type": "invalid", "param": "slo"}}', "too long"),
        ('{"error": "too long"}', '{"error": "too long"}'),
        ("<html>502</html>", "<html>502</html>"),
        ("", ""),
        ("x" * 999, "x" * 300),
    ],
)
def test_a_refusal_is_its_message(text: str, told: str) -> None:
    assert said(text) == told
