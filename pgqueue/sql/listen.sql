-- Ask to be woken. On a connection that never runs anything else.
LISTEN pgqueue
