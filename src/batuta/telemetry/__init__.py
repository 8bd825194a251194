"""What the engine does, told to others as it happens: traces over OTLP, and log lines with ids.

It lies right above the engine: it hears of events and plans, and nothing waits for it.
"""
