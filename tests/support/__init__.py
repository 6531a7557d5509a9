"""Builders, fakes and servers shared by the tests."""
