import pytest

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.shuffling.inputs import load_sampling

GOOD = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
- {source: UNSEEN, markers: [books]}
sampling_frequencies: {CC: 0.5, CODE: 2}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "sources.yaml"
        path.write_text(text)
        return path

    return write


def test_the_first_source_with_a_marker_in_the_path_counts(write):
    sampling = load_sampling(write(GOOD))
    paths = ["/a/cc-main/1", "/a/stack/commoncrawl", "/a/stack/2", "/a/books/3", "/a/other"]
    assert [sampling.source_of(path) for path in paths] == ["CC", "CC", "CODE", None, None]
    assert [sampling.frequency_of(path) for path in paths] == [0.5, 0.5, 2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [", "not YAML"),
        ("[]", "wrong type"),
        ("sampling_frequencies: {}", "a key is missing"),
        (GOOD + "other: 1\n", "not known"),
        (GOOD.replace("source: CODE", "source: CC"), "do not go together"),
        (GOOD.replace("CODE: 2", "WEB: 2"), "frequency of WEB"),
        (GOOD.replace("CODE: 2", "CODE: -2"), "out of range"),
        (GOOD.replace("CODE: 2", "CODE: many"), "wrong type"),
        (GOOD.replace("CODE", "a/b"), "cannot name a corpus"),
    ],
)
def test_what_it_cannot_hold(write, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_sampling(write(text))
    assert "sources.yaml" in str(caught.value)


def test_it_must_be_there(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        load_sampling(tmp_path / "sources.yaml")
