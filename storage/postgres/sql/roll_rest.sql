select e from {{event}} e where e.seq > $1::bigint and e.seq <= $2::bigint and e.roll order by e.seq limit $3::bigint
