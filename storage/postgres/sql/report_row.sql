update {{node}} set seq = $2, highest_generation = greatest(highest_generation, $3)
where incarnation = $1 and seq < $2 and state <> 'removed' and {{same}}
returning {{mark "$1"}}
