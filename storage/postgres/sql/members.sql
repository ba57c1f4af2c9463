-- With the newest event of the same snapshot: what happened later is told by later events.
select c.head, n from {{node}} n, {{counter}} c order by n.incarnation
