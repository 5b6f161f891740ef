"""The table of what the gateway costs."""

from loadtests.gateway import Block, to_markdown


def test_ratios_are_within_rounds():
    """A slow second round changes no ratio; medians are of rounds."""
    direct = [Block(5.0, 10.0, 100.0, 1.0), Block(50.0, 100.0, 10.0, 3.0)]
    behind = [Block(10.0, 10.0, 50.0, 2.0), Block(100.0, 300.0, 5.0, 4.0)]
    text = to_markdown({(1, "direct"): direct, (1, "nginx"): behind}, "measured")
    assert text.splitlines()[-2:] == [
        "| 1 | direct | 27.50 | 1.00 (1.00 … 1.00) | 55.00 | 1.00 (1.00 … 1.00) "
        "| 55 | 2.00 |",
        "| 1 | nginx | 55.00 | 2.00 (2.00 … 2.00) | 155.00 | 2.00 (1.00 … 3.00) "
        "| 28 | 3.00 |",
    ]


def test_each_is_held_against_direct_at_as_many_in_flight():
    """16 in flight is not compared with one."""
    blocks = {
        (1, "direct"): [Block(1.0, 1.0, 1.0, 1.0)],
        (16, "direct"): [Block(4.0, 8.0, 1.0, 1.0)],
        (16, "nginx"): [Block(8.0, 8.0, 1.0, 1.0)],
    }
    last = to_markdown(blocks, "measured").splitlines()[-1]
    assert "| 8.00 | 2.00 (2.00 … 2.00) | 8.00 | 1.00 (1.00 … 1.00) |" in last
