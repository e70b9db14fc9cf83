import threading
import tracemalloc

import pytest

from ray_jobs.listing import BYTES_AHEAD, CHUNK_BYTES, CHUNKS_AHEAD, LARGEST_CHUNK, Listing, SeenKeys
from ray_jobs.sources import Item, Unusable, open_source
from ray_jobs.sources.streams import Carried
from ray_jobs.tally import Tally

NOWHERE = Unusable("missing", "not there")


def item(key, source=None):
    return Item(key, NOWHERE, source or f"/photos/{key}")


class Numbers:
    """A source of n items that counts how many were asked for."""

    name, path = "numbers", ""

    def __init__(self, count, error=None):
        self.count, self.error, self.given = count, error, 0

    def items(self):
        for number in range(self.count):
            self.given = number + 1
            yield item(f"{number:07d}")
        if self.error:
            raise self.error


def read(listing):
    items, duplicates = [], []
    while not listing.exhausted:
        if chunk := listing.next(5.0):
            items += chunk.items
            duplicates += chunk.duplicates
    return [i.key for i in items], [i.source for i in duplicates]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 5000])
def test_everything_is_listed_once_and_in_order(count):
    assert read(Listing(Numbers(count), Tally())) == ([f"{number:07d}" for number in range(count)], [])


@pytest.mark.parametrize("limit", [1, 16, 17, 100])
def test_limit(limit):
    source = Numbers(1000)
    assert len(read(Listing(source, Tally(), limit))[0]) == limit
    assert source.given <= limit + 1


def test_equal_keys_across_chunks():
    class Twice(Numbers):
        def items(self):
            yield from super().items()
            yield item("0000000", "/elsewhere")
            yield item("0000000")  # the same input again: not a duplicate key
            yield item("0000999", "/elsewhere too")
            yield item("0000999", "/elsewhere too")

    keys, duplicates = read(Listing(Twice(1000), Tally()))
    assert len(keys) == 1000
    assert duplicates == ["/elsewhere", "/elsewhere too", "/elsewhere too"]


def test_equal_keys_within_a_chunk():
    chunk = SeenKeys().split([item("a", "1"), item("b", "1"), item("a", "2"), item("a", "1")])
    assert [i.source for i in chunk.items] == ["1", "1"] and [i.source for i in chunk.duplicates] == ["2"]
    assert SeenKeys().split([]).items == []


def test_an_error_of_the_source_ends_the_listing():
    listing = Listing(Numbers(100, OSError("the disk went away")), Tally())
    with pytest.raises(OSError, match="went away"):
        while listing.next(5.0):
            pass
    assert listing.exhausted and listing.next(0) is None


def test_the_tally_knows_what_is_listed_ahead():
    tally = Tally()
    listing = Listing(Numbers(5000), tally)
    listing._thread.join(20)
    assert (tally.listed, tally.complete, listing.exhausted) == (5000, True, False)


def test_peek_takes_nothing_away():
    listing = Listing(Numbers(3), Tally())
    assert listing.peek(5.0)
    assert len(listing.next(5.0)) == 3
    empty = Listing(Numbers(0), Tally())
    assert not empty.peek(5.0) and empty.exhausted


def test_listing_runs_only_so_far_ahead_and_ends_when_closed():
    source, threads = Numbers(10**9), threading.active_count()
    listing = Listing(source, Tally())
    while listing.peek(1.0) and source.given < CHUNKS_AHEAD * LARGEST_CHUNK // 2:
        listing.next(0)
    listing.close()
    listing._thread.join(20)
    assert not listing._thread.is_alive()
    assert source.given <= (2 * CHUNKS_AHEAD + 2) * LARGEST_CHUNK
    assert threading.active_count() <= threads


def test_the_keys_seen_take_few_bytes_each():
    seen = SeenKeys()
    chunk = [item(str(number)) for number in range(1000)]
    seen.split(chunk)
    tracemalloc.start()
    for start in range(1, 11):
        seen.split([item(f"{start}/{number}") for number in range(1000)])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000 * 40
    assert len(seen.split(chunk)) == 0


def test_two_names_that_are_no_text_are_two_inputs(tmp_path):
    """Their printable forms are the same."""
    for name in (b"%FF.jpg", b"\xff.jpg"):
        with open(bytes(tmp_path) + b"/" + name, "wb") as file:
            file.write(b"x")
    listing = Listing(open_source(str(tmp_path)), Tally())
    keys, duplicates = read(listing)
    assert keys == ["%FF.jpg"] and len(duplicates) == 1


class Stream:
    """A source whose images travel with the items."""

    name, path = "stream", ""

    def __init__(self, count, size):
        self.count, self.size, self.given = count, size, 0

    def items(self):
        for number in range(self.count):
            self.given = number + 1
            yield Item(f"{number:07d}", Carried(number, bytes(self.size)), f"/archive!{number}")


def test_images_that_travel_with_their_items_wait_in_bounded_memory():
    source = Stream(600, 2**20)
    listing = Listing(source, Tally())
    taken = 0
    while not listing.exhausted:
        if chunk := listing.next(5.0):
            taken += len(chunk)
            assert chunk.carried <= CHUNK_BYTES + source.size
            assert (source.given - taken) * source.size <= BYTES_AHEAD + 3 * CHUNK_BYTES
    assert taken == 600


def test_listings_that_were_cut_short_are_counted():
    class Cut:
        def items(self):
            yield item("a")
            yield Item("b", Unusable("unreadable", "no permission", hides=True), "/b")

    tally = Tally()
    read(Listing(Cut(), tally))
    assert (tally.listed, tally.cut_short) == (2, 1)
