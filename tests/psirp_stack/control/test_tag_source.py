"""Tags are the same for everybody in a domain and different for everything else."""

from collections import Counter
from itertools import permutations

from psirp_stack.control.tag_source import DerivedTags, PlacedTags
from psirp_stack.forwarding_model import FILTER_BITS, TABLES, TAG_BITS
from psirp_stack.graph import backbone_graph, grid_graph

SEED = b"domain"


def test_derived_tags_follow_from_seed_and_names_alone() -> None:
    tags = DerivedTags(SEED).link_tags("a", "b")
    assert tags == DerivedTags(SEED).link_tags("a", "b")
    assert len(tags) == TABLES
    assert all(tag.bit_count() == TAG_BITS and tag < 1 << FILTER_BITS for tag in tags)
    others = [
        DerivedTags(SEED).link_tags("b", "a"),
        DerivedTags(b"other").link_tags("a", "b"),
        DerivedTags(SEED).link_tags("a", "c"),
        DerivedTags(SEED).internal_tags("a"),
        DerivedTags(SEED).internal_tags("ab"),
    ]
    assert len({tags, *others}) == 6
    assert DerivedTags(SEED).link_tags("ab", "c") != DerivedTags(SEED).link_tags("a", "bc")


def test_derived_tags_use_all_bits_evenly() -> None:
    source = DerivedTags(SEED)
    counts: Counter[int] = Counter()
    for a, b in permutations(map(str, range(40)), 2):
        for tag in source.link_tags(a, b):
            counts.update(bit for bit in range(FILTER_BITS) if tag >> bit & 1)
    mean = 40 * 39 * TABLES * TAG_BITS / FILTER_BITS
    assert len(counts) == FILTER_BITS
    # Six standard deviations: binomial, so about the root of the mean.
    assert all(abs(count - mean) < 6 * mean**0.5 for count in counts.values())


def test_placed_tags_are_the_same_on_every_node_and_fall_back_for_unknown_links() -> None:
    graph = grid_graph(4, 4)
    one, other = PlacedTags(graph, SEED), PlacedTags(graph, SEED)
    for tail, head in graph.links:
        names = graph.names[tail], graph.names[head]
        assert one.link_tags(*names) == other.link_tags(*names) != DerivedTags(SEED).link_tags(*names)
    assert [one.internal_tags(name) for name in graph.names] == [other.internal_tags(name) for name in graph.names]
    assert one.link_tags("0.0", "3.3") == DerivedTags(SEED).link_tags("0.0", "3.3")
    assert one.internal_tags("elsewhere") == DerivedTags(SEED).internal_tags("elsewhere")


def test_small_networks_get_a_bit_for_each_link() -> None:
    graph = backbone_graph(12, 20, seed=1)
    tags = PlacedTags(graph, SEED)
    first = [tags.link_tags(graph.names[tail], graph.names[head])[0] for tail, head in graph.links]
    assert len(set(first)) == len(first)
    assert all(tag.bit_count() == 1 for tag in first)
