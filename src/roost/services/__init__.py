"""Loops with a clock and a store: inventory, scheduler, leader, events."""
