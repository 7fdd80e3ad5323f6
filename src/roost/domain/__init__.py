"""The words of Roost as types: pure, frozen, standard library only."""
