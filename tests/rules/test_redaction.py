"""No secret leaves; nothing else is touched."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.redaction import redact_text, redactor

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"

# Assembled here, so that no scanner takes this file for a leak.
SECRETS = {
    "aws-key": "AKI" + "A" + "IOSFODNN7EXAMPLE",
    "huggingface-token": "hf" + "_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "api-key": "sk" + "-" + "proj-abcDEF0123456789abcDEF0123456789",
    "github-token": "gh" + "p_" + "0123456789abcdefABCDEF0123456789abcd",
    "gitlab-token": "glpat" + "-" + "0123456789abcdefABCD",
    "slack-token": "xox" + "b-" + "123456789012-abcdefABCDEF",
    "json-web-token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("around", ["{}", "loaded {} from the environment", 'export X="{}";', "token is {}, thanks", "a={}&b=2"])
def test_a_secret_of_a_known_form_is_taken_out_wherever_it_stands(kind: str, around: str) -> None:
    cleaned = redact_text(around.format(SECRETS[kind]))
    assert SECRETS[kind] not in cleaned
    assert cleaned == around.format(f"[redacted:{kind}]")


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [redacted:authorization]"),
        ('"authorization": "Basic dXNlcjpwYXNzd29yZA=="', '"authorization": "Basic [redacted:authorization]"'),
        ("curl -H 'X: bearer abcdef0123456789abcdef'", "curl -H 'X: bearer [redacted:authorization]'"),
        ("git clone https://ada:hunter22@git.example.org/x", "git clone https://ada:[redacted:url-password]@git.example.org/x"),
        ("redis://:hunter22@cache:6379/0", "redis://:[redacted:url-password]@cache:6379/0"),
        ("DB_PASSWORD=correcthorse next", "DB_PASSWORD=[redacted:named-secret] next"),
        ('{"api_key": "0123456789abcdef"}', '{"api_key": [redacted:named-secret]}'),
        ("WANDB_API_KEY: 0123456789abcdef0123", "WANDB_API_KEY: [redacted:named-secret]"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "aws_secret_access_key = [redacted:named-secret]"),
        ("PASSWORD=pa$$w[o]rd", "PASSWORD=[redacted:named-secret]"),
        ("client_secret='two words here'", "client_secret=[redacted:named-secret]"),
    ],
)
def test_a_secret_is_recognised_by_what_stands_before_it(line: str, cleaned: str) -> None:
    assert redact_text(line) == cleaned


@pytest.mark.parametrize(
    "line",
    [
        "iteration 100 | tokens per second 40960 | num_tokens=123456789",
        "pad_token: <pad>  eos_token=</s>  bos_token_id: 1",
        "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1234, GPU has fallen off the bus.",
        "connecting to tcp://10.0.0.1:29500 (rank 3)",
        "see https://pytorch.org/docs/stable/elastic/errors.html",
        "HF_TOKEN=${HF_TOKEN}",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "KeyError: 'access_token'",
        "basic sanity checks passed for all ranks",
        "user@host: /scratch/ada/run7",
    ],
)
def test_a_line_without_a_secret_stays_as_it_is(line: str) -> None:
    assert redact_text(line) == line


def test_a_private_key_goes_from_its_first_line_to_its_last() -> None:
    body = "\n".join(LETTERS[:60] for _ in range(5))
    text = f"before\nkey: -----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY----- after\nlast\n"
    cleaned = redact_text(text)
    assert LETTERS[:60] not in cleaned
    assert cleaned.count("\n") == text.count("\n")
    assert cleaned.startswith("before\nkey: [redacted:private-key]\n")
    assert cleaned.endswith("[redacted:private-key] after\nlast\n")


def test_a_private_key_whose_end_is_missing_goes_to_the_end_of_the_block() -> None:
    text = f"before\n-----BEGIN PRIVATE KEY-----\n{LETTERS}\n{LETTERS}\n"
    cleaned = redact_text(text)
    assert LETTERS not in cleaned
    assert cleaned.count("\n") == text.count("\n")


texts = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from(sorted(SECRETS.values())),
        st.sampled_from(
            ["password=", "Bearer ", "://u:", "@", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "\n", '"', "'"]
        ),
        st.text(LETTERS, min_size=20, max_size=44),
    ),
    max_size=12,
).map("".join)


@given(texts)
def test_redacting_keeps_the_number_of_lines_and_is_done_once(text: str) -> None:
    once = redact_text(text)
    assert once.count("\n") == text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").count("\n")
    assert redact_text(once) == once


@given(st.text(max_size=40), st.sampled_from(sorted(SECRETS.values())), st.text(max_size=40))
def test_no_known_secret_survives_between_blanks(before: str, secret: str, after: str) -> None:
    assert secret not in redact_text(f"{before} {secret} {after}")


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(data: bytes) -> None:
    assert redactor().redact(data).count(b"\n") == data.count(b"\n")
