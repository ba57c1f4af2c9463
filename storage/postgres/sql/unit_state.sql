select s from {{unit_state}} s where s.daemon = $1 and s.index = $2::bigint
