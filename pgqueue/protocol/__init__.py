"""The only place that opens a cursor: each function sends statements of `pgqueue.sql` and returns plain values.

Functions for workers take a psycopg connection of the queue's own; functions for the application take a
database alias and use Django's connection, so that they join the caller's transaction.
"""
