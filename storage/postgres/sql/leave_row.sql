update {{node}} set seq = $2::bigint where incarnation = $1 and seq < $2::bigint and (state <> 'removed' or $3::boolean)
returning {{mark "$1"}}
