-- Reads the events about members among as many events as one reply may have. Without an order and a limit, the
-- statement is cheap to plan. A node that is further behind uses roll_rest.
select e from {{event}} e where e.seq > $1::bigint and e.seq <= $2::bigint and e.roll
