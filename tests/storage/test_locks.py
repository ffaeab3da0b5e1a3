from nanoset_core.storage.locks import held_alone


def test_one_holds_a_lock_at_a_time(tmp_path):
    lock = tmp_path / ".lock"
    with held_alone(lock) as first, held_alone(lock) as second:
        assert (first, second) == (True, False)
    with held_alone(lock) as again:
        assert again
