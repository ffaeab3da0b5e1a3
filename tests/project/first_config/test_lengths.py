"""The amounts of text by which `nanoset init` chooses the length of samples."""

from nanoset_core.project.first_config.lengths import TextAmount, smallest_corpus


def test_a_corpus_of_unknown_size_is_not_named_as_the_smallest_one():
    unknown = TextAmount(documents=10, tokens=0, least_tokens=0)
    small = TextAmount(documents=90, tokens=5000, least_tokens=2500)
    large = TextAmount(documents=2000, tokens=900_000, least_tokens=450_000)

    assert smallest_corpus({"images": unknown, "code": small, "web": large}) == "code"
    assert smallest_corpus({"images": unknown, "other": unknown}) is None
