"""Makes small tokenizers of each kind of file, and the tokens that each kind's own library gives
for TEXTS.

    python make.py

Run with sentencepiece 0.2.3, tiktoken 0.14.0, mistral-common 1.13.1, tokenizers 0.23.3,
transformers 5.23.0 and megatron-core 0.16.1.
"""

import base64
import json
import unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
from megatron.core.tokenizers.text.libraries.sentencepiece_tokenizer import SentencePieceTokenizer
from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import TikTokenTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer

HERE = Path(__file__).parent
PROSE = """The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times, haven't they?
    def frobnicate(self, value=None):
        return self.table[value] != "x" or 3.14159
Приветствую вас, дорогие друзья! Это проверка. 1917 год. Ça va très bien, merci — l'été, déjà vu.
日本語のテキストです。これは試験です。中文文本，需要处理的句子。한국어 문장도 있습니다. ١٢٣ ½ ² ==== ---- ***
I'll say he'd've gone; WE'RE DONE'S. http://example.org/a_b?c=d&e=%20f and tabs\tand more of the same words
"""
TEXTS = [
    "",
    " ",
    "  two  spaces and\ttabs\n\n and \r\n returns   ",
    "The quick brown fox can't jump, they'LL see: 12345 + ½",
    "text <s> with </s> the names <unk> of <mask> special <SPECIAL_9> tokens [INST] "
    "<|endoftext|><|im_end|> <0x41> end",
    "<s>first</s><s> then</s>  ",
    "Приветствую Ça va e\u0301te\u0301 \u212b \ufb01 日本語のテキスト🎉\U0010ffff",
    "\u2581sign \u2581\u2581 and nul \0 and \u200b\ufeff",
    "x = [1,2]\n\tif a!=b:\n\t\treturn None  # trailing\n   ",
    "MixedCASEWords HTTPServer ǅungla ʰlow",
]
NAMES = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]


def trained_ranks():
    """Tokens as bytes, by rank."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [PROSE] * 3,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False),
    )
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    long = [bytes(byte_of[character] for character in word) for word, _ in words if len(word) > 1]
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return [bytes([byte]) for byte in range(256)] + long, tokenizer


def main():
    """Write all files."""
    expected = {}
    words, tokenizer = trained_ranks()

    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    (HERE / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (HERE / "merges.txt").write_text("#version: 0.2\n" + merges)
    gpt2 = GPT2Tokenizer(vocab=str(HERE / "vocab.json"), merges=str(HERE / "merges.txt"))
    expected["vocab.json"] = [gpt2(text).input_ids for text in TEXTS]

    (HERE / "ranks.tiktoken").write_bytes(
        b"".join(base64.b64encode(w) + b" %d\n" % n for n, w in enumerate(words))
    )
    ranks = {word: rank for rank, word in enumerate(words)}
    patterns = {
        "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        "o200k": "|".join(
            [
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ]
        ),
    }
    for name, regex in patterns.items():
        special = {"<|endoftext|>": len(words), "<|im_end|>": len(words) + 1}
        encoding = tiktoken.Encoding(
            name, pat_str=regex, mergeable_ranks=ranks, special_tokens=special
        )
        texts = [unicodedata.normalize("NFC", text) for text in TEXTS] if name == "qwen2" else TEXTS
        expected[f"ranks.tiktoken {name}"] = [
            encoding.encode(text, allowed_special="all") for text in texts
        ]

    entries = [
        {
            "rank": rank,
            "token_bytes": base64.b64encode(word).decode(),
            "token_str": word.decode(errors="replace"),
        }
        for rank, word in enumerate(words)
    ]
    (HERE / "megatron.json").write_text(json.dumps(entries))
    for pattern in ("v1", "v2"):
        own = TikTokenTokenizer(
            str(HERE / "megatron.json"),
            pattern=pattern,
            num_special_tokens=20,
            vocab_size=len(words) + 10,
        )
        expected[f"megatron.json {pattern}"] = [own.text_to_ids(text) for text in TEXTS]

    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| "
        r"?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        "num_vocab_tokens": len(words),
        "default_vocab_size": len(words) + 10,
        "default_num_special_tokens": 30,
        "version": "v3",
    }
    (HERE / "tekken.json").write_text(json.dumps({"config": config, "vocab": entries}))
    tekken = Tekkenizer.from_file(HERE / "tekken.json")
    expected["tekken.json"] = [tekken.encode(text, bos=False, eos=False) for text in TEXTS]

    (HERE / "prose.txt").write_text(PROSE)
    (HERE / "rules.tsv").write_text("BD\t31 2F 32\nFB01\t66 69\n9\t20\nA\t20\n")
    common = {
        "input": str(HERE / "prose.txt"),
        "minloglevel": 2,
        "hard_vocab_limit": False,
        "character_coverage": 1.0,
    }
    sentencepiece.SentencePieceTrainer.train(
        model_prefix=str(HERE / "bpe"), model_type="bpe", vocab_size=560, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["[USER]"], **common,
    )  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        model_prefix=str(HERE / "unigram"), model_type="unigram", vocab_size=300,
        normalization_rule_tsv=str(HERE / "rules.tsv"), **common,
    )  # fmt: skip
    for name in ("bpe", "unigram"):
        path = HERE / f"{name}.model"
        path.with_suffix(".vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        expected[path.name] = [processor.encode(text) for text in TEXTS]
        legacy = SentencePieceTokenizer(
            str(path), special_tokens=["<s>", "<mask>", "<unk>"], legacy=True
        )
        expected[f"{path.name} legacy"] = [legacy.text_to_ids(text) for text in TEXTS]
    (HERE / "prose.txt").unlink()
    (HERE / "rules.tsv").unlink()
    rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in expected.items())
    (HERE / "expected.json").write_text("{\n" + rows + "\n}\n")
    (HERE / "texts.json").write_text(json.dumps(TEXTS, indent=1) + "\n")


if __name__ == "__main__":
    main()
