"""What was expected of the model and the library and did not come, and what was seen of either."""
import collections

failures = []
seen = collections.Counter()


def expect(condition, what, *details):
    """Counts a failure; prints the first ones."""
    if not condition:
        failures.append(what)
        if len(failures) <= 20:
            print("FAILED:", what, *details)
    return condition
