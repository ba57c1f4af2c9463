select e from {{event}} e where e.seq > $1 and e.seq <= $2 and e.roll order by e.seq limit $3
