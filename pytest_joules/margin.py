"""Stub, to be written over."""


def margins(*_):
    return []


def nearest(_):
    return None
