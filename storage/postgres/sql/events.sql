select e from {{event}} e where e.seq > $1::bigint order by e.seq limit $2::bigint
