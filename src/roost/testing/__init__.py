"""Stand-ins for the world outside, shipped: FakeClock, FakeEngine, FakeFleet."""
