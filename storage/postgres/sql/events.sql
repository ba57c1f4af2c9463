select e from {{event}} e where e.seq > $1 order by e.seq limit $2
