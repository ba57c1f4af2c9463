-- As many events as one reply may bring, whatever they are about: no order, no limit, nothing to
-- plan. A node that is further behind uses roll_rest.
select e from {{event}} e where e.seq > $1 and e.seq <= $2 and e.roll
