"""How the schema came to be, step by step; applied by `roost.store.migrate`."""
