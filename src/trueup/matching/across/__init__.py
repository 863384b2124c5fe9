"""Calls and records of two implementations of other trees and names, paired by what flows through them."""
