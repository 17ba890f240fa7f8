"""Text for people: durations, advice, terminals."""
