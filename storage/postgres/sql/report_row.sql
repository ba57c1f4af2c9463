update {{node}} set seq = $2::bigint, highest_generation = greatest(highest_generation, $3::bigint)
where incarnation = $1 and seq < $2::bigint and state <> 'removed' and {{same}}
returning {{mark "$1"}}
