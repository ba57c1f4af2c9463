update {{node}} set seq = $2 where incarnation = $1 and seq < $2 and (state <> 'removed' or $3)
returning {{mark "$1"}}
